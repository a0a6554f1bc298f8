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
		child, parent, ok := readStat(name)
		if ok {
			children[parent] = append(children[parent], child)
		}
	}

	var found []int

	for next := children[pid]; len(next) > 0; next = next[1:] {
		found = append(found, next[0])
		next = append(next, children[next[0]]...)
	}

	return found
}

// readStat reads the process id and its parent's from a stat file of /proc.
func readStat(name string) (pid, parent int, ok bool) {
	text, err := os.ReadFile(name)
	if err != nil {
		return 0, 0, false
	}

	// "pid (command) state parent …": the command may hold blanks and parentheses.
	open, end := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	if open < 1 || end < open {
		return 0, 0, false
	}

	fields := bytes.Fields(text[end+1:])
	if len(fields) < 2 {
		return 0, 0, false
	}

	pid, err = strconv.Atoi(string(bytes.TrimSpace(text[:open])))
	if err != nil {
		return 0, 0, false
	}

	parent, err = strconv.Atoi(string(fields[1]))

	return pid, parent, err == nil
}
