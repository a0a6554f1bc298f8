package proc

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"
)

// goneLimit is how long killed processes are waited for; they end at once unless the kernel is busy with them.
const goneLimit = 5 * time.Second

// Process is one started child.
type Process struct {
	spec Spec
	cmd  *exec.Cmd
	done chan struct{} // closed when the child is reaped
	err  error         // how it ended; read after done
}

// PID returns the process id.
func (p *Process) PID() int {
	return p.cmd.Process.Pid
}

// Done returns a channel that is closed when the process has ended.
func (p *Process) Done() <-chan struct{} {
	return p.done
}

// Ended reports whether the process has ended.
func (p *Process) Ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// Err says how the process ended: nil for exit status 0. It waits for the end.
func (p *Process) Err() error {
	<-p.done
	return p.err
}

// Signal sends a signal; a process that has ended is not an error.
func (p *Process) Signal(sig syscall.Signal) error {
	if p.Ended() {
		return nil
	}

	err := p.cmd.Process.Signal(sig)
	if errors.Is(err, os.ErrProcessDone) || errors.Is(err, syscall.ESRCH) {
		return nil
	}

	return err
}

// Kill ends the process and everything it started, at once, and waits until all of it is gone.
func (p *Process) Kill() {
	if p.Ended() {
		return
	}

	// What is below is listed first, since afterwards nothing says whose it was; and while it is stopped, so that nothing is
	// added meanwhile. A server's workers often lead groups of their own, so killing the group would not do.
	_ = p.Signal(syscall.SIGSTOP)
	pids := descendants(p.PID())

	_ = syscall.Kill(-p.PID(), syscall.SIGKILL)
	_ = p.Signal(syscall.SIGKILL)

	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}

	<-p.done
	awaitGone(pids)
}

// awaitGone waits until processes that were killed have let go of their ports and files.
func awaitGone(pids []int) {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()

	for end := time.Now().Add(goneLimit); time.Now().Before(end); <-tick.C {
		if !slices.ContainsFunc(pids, alive) {
			return
		}
	}
}

// Stop asks the process to end and kills it when it takes longer than its grace, or when ctx ends.
func (p *Process) Stop(ctx context.Context) {
	_ = p.Signal(p.spec.StopSignal)
	// A paused process hears nothing until it goes on, and may wait for what was paused below it.
	_ = p.Resume()

	timer := time.NewTimer(p.spec.Grace)
	defer timer.Stop()

	select {
	case <-p.done:
	case <-timer.C:
		p.Kill()
	case <-ctx.Done():
		p.Kill()
	}
}

// Tail returns the last lines of a log file, at most limit bytes of them, for error messages.
func Tail(path string, limit int64) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()

	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return ""
	}

	from := max(0, size-limit)

	text, err := io.ReadAll(io.NewSectionReader(f, from, size-from))
	if err != nil {
		return ""
	}

	if cut := bytes.IndexByte(text, '\n'); from > 0 && cut >= 0 {
		text = text[cut+1:]
	}

	return strings.TrimSpace(string(text))
}

// Pause stops the process and everything below it as SIGSTOP does: connections stay open and nothing answers.
func (p *Process) Pause() error {
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}

	for _, pid := range descendants(p.PID()) {
		_ = syscall.Kill(pid, syscall.SIGSTOP)
	}

	return nil
}

// Resume lets a paused process go on.
func (p *Process) Resume() error {
	for _, pid := range descendants(p.PID()) {
		_ = syscall.Kill(pid, syscall.SIGCONT)
	}

	return p.Signal(syscall.SIGCONT)
}
