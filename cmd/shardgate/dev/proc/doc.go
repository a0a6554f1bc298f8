// Package proc starts child processes that cannot outlive this one.
//
// A [Group] owns one operating system thread for as long as it lives and starts every child from it. On Linux each child asks
// the kernel for a signal when that thread ends (PR_SET_PDEATHSIG), so that an ordinary end, a panic, a test's time-out and
// kill -9 of this process all end the children. The kernel ties the request to the thread, not to the process: that is why the
// thread is kept. Children are leaders of their own process groups, so a Ctrl-C at the terminal reaches only us and we end
// them in order.
//
// The package knows nothing of databases: programs, users, signals and log files come in a [Spec].
package proc
