package proc

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// defaultGrace is how long a child may take to end after its stop signal.
const defaultGrace = 10 * time.Second

// Spec says what to start and how to end it.
type Spec struct {
	Name string   // for people: errors and progress lines
	Path string   // the program
	Args []string // without the program's name
	Env  []string // added to this process's environment, later ones win
	Dir  string   // working folder, "" for this process's own
	Log  string   // file that standard output and error are appended to, "" for nowhere
	User *User    // who runs it, nil for this process's own user

	StopSignal  syscall.Signal // asks for an ordered end, 0 for SIGTERM
	DeathSignal syscall.Signal // sent by the kernel when this process dies, 0 for SIGKILL
	Grace       time.Duration  // between StopSignal and SIGKILL, 0 for ten seconds
}

// User is whose credentials a child runs with.
type User struct {
	Name     string
	UID, GID uint32
	// Traverse lets the child through folders that are closed to the user, such as the home of root.
	Traverse bool
}

// withDefaults returns s with the zero values replaced.
func (s Spec) withDefaults() Spec {
	if s.StopSignal == 0 {
		s.StopSignal = syscall.SIGTERM
	}

	if s.DeathSignal == 0 {
		s.DeathSignal = syscall.SIGKILL
	}

	if s.Grace == 0 {
		s.Grace = defaultGrace
	}

	return s
}

// attach gives cmd the log file of s as its output and returns the function that closes our copy of it.
func (s Spec) attach(cmd *exec.Cmd) (func(), error) {
	if s.Log == "" {
		return func() {}, nil
	}

	f, err := os.OpenFile(s.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("log of %s: %w", s.Name, err)
	}

	cmd.Stdout, cmd.Stderr = f, f

	return func() { _ = f.Close() }, nil
}

// OpenToOthers reports whether any user may pass through every folder above path, and path too if it is a folder.
func OpenToOthers(path string) bool {
	path, err := filepath.Abs(path)
	if err != nil {
		return false
	}

	if resolved, err := filepath.EvalSymlinks(path); err == nil {
		path = resolved
	}

	for {
		info, err := os.Stat(path)
		if err == nil && info.IsDir() && info.Mode().Perm()&0o001 == 0 {
			return false
		}

		up := filepath.Dir(path)
		if up == path {
			return true
		}

		path = up
	}
}
