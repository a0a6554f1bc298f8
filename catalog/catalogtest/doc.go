// Package catalogtest is the suite that every [catalog.Store] passes: [Run] walks
// through the contract in that interface's comments. What only one implementation
// has (a silent router's limit, a killed server) is tested beside it. The package
// must not know which implementation it tests.
package catalogtest
