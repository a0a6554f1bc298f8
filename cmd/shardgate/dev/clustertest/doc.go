// Package clustertest gives tests clusters and client programs. A part that is missing skips the test loudly on a person's
// machine and fails it where CI=true.
package clustertest
