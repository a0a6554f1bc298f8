package proc

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// Ports are taken from below the range that Linux gives to outgoing connections, so that a server that is down for a while does
// not find its port used as the near end of somebody's connection; and from above the ports that people use.
const (
	lowestPort  = 20000
	highestPort = 32000
	portTries   = 200
)

// ErrNoPort means that no free port was found.
var ErrNoPort = errors.New("no free port")

// Ports hands out free ports of the loopback address, none twice. Somebody else may still take one before it is used: whoever
// starts a server must be ready to ask again.
type Ports struct {
	mu    sync.Mutex
	given map[int]struct{} // guarded by mu
}

// Pick returns a port that was free just now.
func (p *Ports) Pick() (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()

	for range portTries {
		port := lowestPort + rand.IntN(highestPort-lowestPort)
		if _, taken := p.given[port]; taken || !PortFree(port) {
			continue
		}

		p.reserve(port)

		return port, nil
	}

	return 0, ErrNoPort
}

// Reserve keeps a port that is chosen already from being handed out.
func (p *Ports) Reserve(port int) {
	p.mu.Lock()
	defer p.mu.Unlock()

	p.reserve(port)
}

// reserve is Reserve with the lock held.
func (p *Ports) reserve(port int) {
	if p.given == nil {
		p.given = map[int]struct{}{}
	}

	p.given[port] = struct{}{}
}

// PortFree reports whether a server could listen on a port of the loopback address.
func PortFree(port int) bool {
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port})
	if err != nil {
		return false
	}

	return l.Close() == nil
}

// Loopback returns "127.0.0.1:port".
func Loopback(port int) string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}
