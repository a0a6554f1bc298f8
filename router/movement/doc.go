// Package movement decides what a movement of an unsharded collection does next, from its
// state in the catalog and from what is known besides. It is pure: package router gathers
// the Facts and carries out the Actions, and the model test explores both.
//
// It must not know sockets, SQL, BSON or time.
package movement
