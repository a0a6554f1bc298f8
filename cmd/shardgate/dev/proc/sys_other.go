//go:build !linux

package proc

import "syscall"

// sysProcAttr asks for a process group of its own; only Linux has a death signal, so elsewhere a kill -9 of this process
// leaves its children running.
func (s Spec) sysProcAttr() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true}
	if s.User != nil {
		attr.Credential = &syscall.Credential{Uid: s.User.UID, Gid: s.User.GID}
	}

	return attr
}

// descendants is not known elsewhere; the process group is all that is ended.
func descendants(int) []int {
	return nil
}

// alive reports whether a process exists.
func alive(pid int) bool {
	return syscall.Kill(pid, 0) == nil
}
