package proc

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// sysProcAttr asks for a process group of its own, the death signal and the user's credentials.
func (s Spec) sysProcAttr() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true, Pdeathsig: s.DeathSignal}
	if s.User == nil {
		return attr
	}

	attr.Credential = &syscall.Credential{Uid: s.User.UID, Gid: s.User.GID}
	if s.User.Traverse {
		attr.AmbientCaps = []uintptr{unix.CAP_DAC_OVERRIDE}
	}

	return attr
}

// descendants lists the processes below pid, as far as they can be seen.
func descendants(pid int) []int {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil
	}

	children := map[int][]int{}

	for _, name := range stats {
		if s, ok := readStat(name); ok {
			children[s.parent] = append(children[s.parent], s.pid)
		}
	}

	var found []int

	for next := children[pid]; len(next) > 0; next = next[1:] {
		found = append(found, next[0])
		next = append(next, children[next[0]]...)
	}

	return found
}

// stat is what we read of a process in /proc.
type stat struct {
	pid, parent int
	state       string // "Z" has ended and waits to be reaped
}

// readStat reads a stat file of /proc.
func readStat(name string) (stat, bool) {
	text, err := os.ReadFile(name)
	if err != nil {
		return stat{}, false
	}

	// "pid (command) state parent …": the command may hold blanks and parentheses.
	open, end := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	if open < 1 || end < open {
		return stat{}, false
	}

	fields := bytes.Fields(text[end+1:])
	if len(fields) < 2 {
		return stat{}, false
	}

	pid, err1 := strconv.Atoi(string(bytes.TrimSpace(text[:open])))
	parent, err2 := strconv.Atoi(string(fields[1]))

	return stat{pid: pid, parent: parent, state: string(fields[0])}, err1 == nil && err2 == nil
}

// alive reports whether a process exists and has not ended.
func alive(pid int) bool {
	s, ok := readStat("/proc/" + strconv.Itoa(pid) + "/stat")

	return ok && s.state != "Z"
}
