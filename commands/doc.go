// Package commands is the command table and one handler per command: options
// decoded, the router asked, the reply built. It implements server.Handler.
//
// It must not know goroutines, pools or SQL. Central types: Handler (New), Command (a
// row of the table, from which listCommands, help and the README's list are made) and
// request (one command under way).
package commands

//go:generate go run ./internal/gendoc ../README.md
