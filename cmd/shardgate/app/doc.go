// Package app composes the program: configuration, logging, the catalog, the router
// and the listener. Tests start the same thing in process.
//
// It holds no logic of routing or commands. Central types: Config (everything that can
// be set, typed), App (New builds, Run lives) and Commands (the cobra tree).
package app
