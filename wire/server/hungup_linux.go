package server

import "golang.org/x/sys/unix"

// hungUp reports whether a socket's peer has closed it or its sending half, whatever may
// still be there to be read.
func hungUp(fd int) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	n, err := unix.Poll(p, 0)
	return err == nil && n > 0 && p[0].Revents&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR) != 0
}
