package proc

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"sync"
)

// ErrClosed is returned by a [Group] that has been closed.
var ErrClosed = errors.New("process group is closed")

// Group starts processes and ends those that are left when it is closed, or when this process dies.
type Group struct {
	starts chan func()   // run on the group's own thread
	quit   chan struct{} // closed by Close

	mu     sync.Mutex
	live   map[*Process]struct{} // guarded by mu
	closed bool                  // guarded by mu
}

// NewGroup returns a group that must be closed.
func NewGroup() *Group {
	g := &Group{
		starts: make(chan func()),
		quit:   make(chan struct{}),
		live:   map[*Process]struct{}{},
	}

	go g.run()

	return g
}

// run is the group's thread: children's lives hang on it, so it is never given back.
func (g *Group) run() {
	runtime.LockOSThread()

	for {
		select {
		case start := <-g.starts:
			start()
		case <-g.quit:
			return
		}
	}
}

// Start starts a process; it lives on when ctx ends.
func (g *Group) Start(ctx context.Context, s Spec) (*Process, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}

	s = s.withDefaults()
	cmd := exec.CommandContext(context.WithoutCancel(ctx), s.Path, s.Args...)
	cmd.Env = append(cmd.Environ(), s.Env...)
	cmd.Dir = s.Dir
	cmd.SysProcAttr = s.sysProcAttr()

	return g.start(s, cmd)
}

// Run starts a process, waits for its end and kills it when ctx ends first.
func (g *Group) Run(ctx context.Context, s Spec) error {
	p, err := g.Start(ctx, s)
	if err != nil {
		return err
	}

	select {
	case <-p.Done():
		return p.Err()
	case <-ctx.Done():
		p.Kill()
		return ctx.Err()
	}
}

// start runs cmd on the group's thread and watches for its end.
func (g *Group) start(s Spec, cmd *exec.Cmd) (*Process, error) {
	closeLog, err := s.attach(cmd)
	if err != nil {
		return nil, err
	}
	defer closeLog()

	g.mu.Lock()
	defer g.mu.Unlock()

	if g.closed {
		return nil, ErrClosed
	}

	started := make(chan error, 1)
	g.starts <- func() { started <- cmd.Start() }

	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", s.Name, err)
	}

	p := &Process{spec: s, cmd: cmd, done: make(chan struct{})}
	g.live[p] = struct{}{}

	go g.watch(p)

	return p, nil
}

// watch reaps p.
func (g *Group) watch(p *Process) {
	p.err = p.cmd.Wait()

	g.mu.Lock()
	delete(g.live, p)
	g.mu.Unlock()

	close(p.done)
}

// Close kills what still runs, waits until all of it is gone, and gives the thread back.
func (g *Group) Close() {
	g.mu.Lock()

	if g.closed {
		g.mu.Unlock()
		return
	}

	g.closed = true

	left := make([]*Process, 0, len(g.live))
	for p := range g.live {
		left = append(left, p)
	}

	g.mu.Unlock()

	for _, p := range left {
		p.Kill()
	}

	close(g.quit)
}
