package main

import (
	"context"
	"io"
	"net"
	"sync"
)

// listen binds an address until ctx ends.
func listen(ctx context.Context, addr string) (net.Listener, error) {
	var lc net.ListenConfig

	l, err := lc.Listen(ctx, "tcp", addr)
	if err == nil {
		context.AfterFunc(ctx, func() { l.Close() })
	}

	return l, err
}

// relay is what the least router does: it copies bytes between clients of addr and a server, by splice(2), one connection to the server for each
// client.
func relay(ctx context.Context, addr, server string) error {
	l, err := listen(ctx, addr)
	if err != nil {
		return err
	}

	for {
		client, err := l.Accept()
		if err != nil {
			return nil //nolint:nilerr // it is closed
		}

		go pass(ctx, client, server)
	}
}

// pass copies both ways until either side has closed.
func pass(ctx context.Context, client net.Conn, server string) {
	defer client.Close()

	var d net.Dialer

	up, err := d.DialContext(ctx, "tcp", server)
	if err != nil {
		return
	}
	defer up.Close()

	var wait sync.WaitGroup

	wait.Go(func() {
		_, _ = io.Copy(up, client)
		up.Close()
	})

	_, _ = io.Copy(client, up)
	client.Close()
	wait.Wait()
}
