package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/shardgate/shardgate/cmd/shardgate/dev/proc"
)

const (
	// startLimit is how long a program may take until it answers.
	startLimit = 60 * time.Second
	// portTries is how many ports are tried when others keep taking them.
	portTries = 5
	// portWait is how long a port that must be kept is waited for.
	portWait = 2 * time.Second
	// tailBytes of a log are shown when its program fails.
	tailBytes = 1500
)

// Node is one program of a cluster: PostgreSQL, a mongod or a router. It can be stopped in several ways and started again on
// the same port. Methods may be called from several goroutines, though what two of them at once leave is anybody's guess.
type Node struct {
	name  string
	log   string
	fresh bool // its port may still be changed; only while the cluster starts

	command func(port int) (proc.Spec, error) // how to start it
	probe   func(ctx context.Context) error   // nil once it serves
	group   *proc.Group
	changed func() error      // told after each start and end
	notice  func(line string) // told when it ends by itself

	mu      sync.Mutex
	port    int           // guarded by mu
	process *proc.Process // guarded by mu; the last one started
	wanted  bool          // guarded by mu; it is meant to run
}

// Name returns what the node is called in messages, such as "shard_0/0", "postgres" or "router-0".
func (n *Node) Name() string {
	return n.name
}

// Log returns the path of the file that holds what the node printed.
func (n *Node) Log() string {
	return n.log
}

// Port returns the node's port.
func (n *Node) Port() int {
	n.mu.Lock()
	defer n.mu.Unlock()

	return n.port
}

// Addr returns "127.0.0.1:port".
func (n *Node) Addr() string {
	return proc.Loopback(n.Port())
}

// PID returns the process id, 0 when it does not run.
func (n *Node) PID() int {
	if p := n.current(); p != nil && !p.Ended() {
		return p.PID()
	}

	return 0
}

// current returns the last process started, nil if there was none.
func (n *Node) current() *proc.Process {
	n.mu.Lock()
	defer n.mu.Unlock()

	return n.process
}

// Start starts the node if it does not run, and waits until it serves.
func (n *Node) Start(ctx context.Context) error {
	if n.PID() != 0 {
		return nil
	}

	if !n.fresh {
		if err := n.awaitPort(ctx); err != nil {
			return err
		}
	}

	if err := n.launch(ctx); err != nil {
		return err
	}

	return n.changed()
}

// awaitPort waits a moment for the node's own port: a connection of somebody's may just be passing through it.
func (n *Node) awaitPort(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, portWait)
	defer cancel()

	return poll(ctx, func(context.Context) error {
		if proc.PortFree(n.Port()) {
			return nil
		}

		return fmt.Errorf("%s: port %d, which it must keep, is in use by another program", n.name, n.Port())
	})
}

// first starts a node of a cluster that is being set up: a port that somebody takes in between is exchanged for another.
func (n *Node) first(ctx context.Context, ports *proc.Ports) error {
	n.fresh = true
	defer func() { n.fresh = false }()

	for try := 1; ; try++ {
		if n.Port() == 0 {
			port, err := ports.Pick()
			if err != nil {
				return fmt.Errorf("%s: %w", n.name, err)
			}

			n.setPort(port)
		}

		err := n.Start(ctx)
		if err == nil || ctx.Err() != nil {
			return err
		}

		// The program itself failed unless its port is somebody else's now.
		if p := n.current(); p == nil || !p.Ended() || proc.PortFree(n.Port()) || try == portTries {
			return err
		}

		n.setPort(0)
	}
}

// setPort chooses the node's port.
func (n *Node) setPort(port int) {
	n.mu.Lock()
	defer n.mu.Unlock()

	n.port = port
}

// launch starts the process and waits until it serves; one that does not is killed.
func (n *Node) launch(ctx context.Context) error {
	spec, err := n.command(n.Port())
	if err != nil {
		return fmt.Errorf("%s: %w", n.name, err)
	}

	p, err := n.group.Start(ctx, spec)
	if err != nil {
		return err
	}

	n.mu.Lock()
	n.process, n.wanted = p, true
	n.mu.Unlock()

	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()

	err = poll(ctx, func(ctx context.Context) error {
		if p.Ended() {
			return giveUp(fmt.Errorf("%s ended while starting (%w), see %s:\n%s", n.name, ended(p), n.log, proc.Tail(n.log, tailBytes)))
		}

		return n.probe(ctx)
	})
	if err != nil {
		n.forget()
		p.Kill()

		return fmt.Errorf("%s does not serve: %w", n.name, err)
	}

	go n.watch(p)

	return nil
}

// ended says how a process ended, also when it did so without complaint.
func ended(p *proc.Process) error {
	if err := p.Err(); err != nil {
		return err
	}

	return errors.New("exit status 0")
}

// watch tells when the process ends though nobody asked it to.
func (n *Node) watch(p *proc.Process) {
	<-p.Done()

	n.mu.Lock()
	surprise := n.wanted && n.process == p
	n.mu.Unlock()

	if surprise {
		n.notice(fmt.Sprintf("%s has ended: %v (log: %s)", n.name, ended(p), n.log))
		_ = n.changed() // the file is rewritten with the next change
	}
}

// forget records that the process is meant to end, and returns it if it still runs.
func (n *Node) forget() *proc.Process {
	n.mu.Lock()
	defer n.mu.Unlock()

	n.wanted = false
	if n.process == nil || n.process.Ended() {
		return nil
	}

	return n.process
}

// Kill ends the node and all its children as kill -9 does.
func (n *Node) Kill() error {
	if p := n.forget(); p != nil {
		p.Kill()
	}

	return n.changed()
}

// Stop asks the node to end in order and waits for it; a node that takes too long is killed.
func (n *Node) Stop(ctx context.Context) error {
	if p := n.forget(); p != nil {
		p.Stop(ctx)
	}

	return n.changed()
}

// Restart stops the node in order and starts it again.
func (n *Node) Restart(ctx context.Context) error {
	if err := n.Stop(ctx); err != nil {
		return err
	}

	return n.Start(ctx)
}

// Pause makes the node silent as SIGSTOP does: its connections stay open.
func (n *Node) Pause() error {
	if p := n.current(); p != nil {
		return p.Pause()
	}

	return nil
}

// Resume lets a paused node go on.
func (n *Node) Resume() error {
	if p := n.current(); p != nil {
		return p.Resume()
	}

	return nil
}

// Done returns a channel that is closed when the process that runs now has ended, nil when none was started.
func (n *Node) Done() <-chan struct{} {
	if p := n.current(); p != nil {
		return p.Done()
	}

	return nil
}
