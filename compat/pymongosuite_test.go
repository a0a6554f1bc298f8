package compat

// PyMongo's own test suite, with the drivers' specification tests, against the router as a sharded cluster and against a plain
// mongod, the baseline. What passes there must pass here; what PyMongo itself skips on a mongos is only counted. Tests that need
// fail points are skipped on both, as neither has test commands.
//
// testdata/pymongo/exceptions.txt lists the tests that fail on the router, each with its reason; one that passes must be taken out.
// testdata/pymongo/passes.txt is the number of passes on the router. It may only rise:
//
//	go test ./compat -run TestPyMongoSuite -update-passes

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/shardgate/shardgate/cmd/shardgate/dev/clustertest"
)

var updatePasses = flag.Bool("update-passes", false, "write the number of PyMongo's tests that pass into testdata/pymongo/passes.txt")

const (
	suiteLimit = 20 * time.Minute // it takes four on two cores with nothing beside
	// The mongods of these tests have so small a cache (256 MB) that they refuse its 16 MB documents now and then (388);
	// TestFullMessages is for what it tests.
	suiteTooLarge  = "test/test_bulk.py::TestBulk::test_bulk_max_message_size"
	exceptionsFile = "testdata/pymongo/exceptions.txt"
	passesFile     = "testdata/pymongo/passes.txt"
)

// suiteFiles are the parts of the suite that say how a server must behave: CRUD, cursors, collations, command monitoring, read and
// write concern, sessions, retries, the versioned API.
func suiteFiles() []string {
	var files []string
	for name := range strings.FieldsSeq(`bulk causal_consistency collation collection collection_management command_logging
		command_monitoring comment crud_unified crud_v1 cursor custom_types database monitoring raw_bson read_concern read_preferences
		read_write_concern_spec retryable_reads retryable_reads_unified retryable_writes retryable_writes_unified run_command session
		sessions_unified versioned_api versioned_api_integration write_concern`) {
		files = append(files, "test/test_"+name+".py")
	}

	return files
}

// outcome is how a test ended.
type outcome struct {
	Class   string    `xml:"classname,attr"`
	Name    string    `xml:"name,attr"`
	Failure *complain `xml:"failure"`
	Error   *complain `xml:"error"`
	Skipped *complain `xml:"skipped"`
}

// complain is why a test did not pass.
type complain struct {
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

// passed reports whether the test ran and passed.
func (o *outcome) passed() bool {
	return o.Failure == nil && o.Error == nil && o.Skipped == nil
}

// why says how a test failed, "" if it did not.
func (o *outcome) why() string {
	for _, c := range []*complain{o.Failure, o.Error} {
		if c != nil {
			return c.Message + "\n" + c.Text[max(0, len(c.Text)-logTail):]
		}
	}

	return ""
}

// suiteRun is a run of the suite against one server.
type suiteRun struct {
	addr, report string
	cmd          *exec.Cmd
	out          bytes.Buffer
	err          error
}

// newSuiteRun prepares a run.
func newSuiteRun(t *testing.T, addr string) *suiteRun {
	t.Helper()

	r := &suiteRun{addr: addr, report: filepath.Join(t.TempDir(), "report.xml")}
	r.cmd = clustertest.PyMongoSuite(t, append([]string{"-q", "--tb=short", "--junitxml=" + r.report, "--deselect=" + suiteTooLarge}, suiteFiles()...)...)

	host, port, err := net.SplitHostPort(addr)
	require.NoError(t, err)

	r.cmd.Env = append(r.cmd.Env, "DB_IP="+host, "DB_PORT="+port)
	r.cmd.Stdout, r.cmd.Stderr = &r.out, &r.out
	r.cmd.WaitDelay = 5 * time.Second

	return r
}

// run runs the suite; that tests fail is no error.
func (r *suiteRun) run() {
	if r.err = r.cmd.Start(); r.err != nil {
		return
	}

	late := time.AfterFunc(suiteLimit, func() { _ = r.cmd.Process.Kill() })
	defer late.Stop()

	var exit *exec.ExitError
	if r.err = r.cmd.Wait(); errors.As(r.err, &exit) && exit.ExitCode() == 1 {
		r.err = nil
	}
}

// outcomes reads the report, by test.
func (r *suiteRun) outcomes(t *testing.T) map[string]*outcome {
	t.Helper()
	require.NoError(t, r.err, "PyMongo's suite on %s:\n%s", r.addr, r.out.String()[max(0, r.out.Len()-logTail):])

	text, err := os.ReadFile(r.report)
	require.NoError(t, err)

	var report struct {
		Tests []*outcome `xml:"testsuite>testcase"`
	}
	require.NoError(t, xml.Unmarshal(text, &report))

	all := map[string]*outcome{}

	for _, o := range report.Tests {
		id := strings.TrimPrefix(o.Class, "test.") + "." + o.Name
		require.Nil(t, all[id], "two tests are called %s", id)
		require.False(t, o.Skipped != nil && strings.HasPrefix(o.Skipped.Message, "Cannot connect"), "%s: %v", id, o.Skipped)

		all[id] = o
	}

	return all
}

// exceptions reads which tests fail, and why: lines "TEST -- REASON".
func exceptions(t *testing.T) map[string]string {
	t.Helper()

	text, err := os.ReadFile(exceptionsFile)
	require.NoError(t, err)

	all := map[string]string{}

	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}

		id, reason, ok := strings.Cut(line, " -- ")
		require.True(t, ok && reason != "", "%s: no reason: %s", exceptionsFile, line)
		require.Empty(t, all[id], "%s: twice: %s", exceptionsFile, id)

		all[id] = reason
	}

	return all
}

// baseline starts the plain mongod, a replica set of one as each shard is.
func baseline(t *testing.T) (addr string) {
	t.Helper()

	addr = plainMongod(t, "--replSet", "baseline")
	c := connect(t, "mongodb://"+addr+"/?directConnection=true").Database("admin")
	ctx := opContext(t, opLimit)

	require.NoError(t, c.RunCommand(ctx, bson.D{{"replSetInitiate", bson.D{
		{"_id", "baseline"}, {"members", bson.A{bson.D{{"_id", 0}, {"host", addr}}}},
	}}}).Err())
	eventually(t, opLimit, "the baseline is primary", func() error {
		reply, err := c.RunCommand(ctx, bson.D{{"hello", 1}}).Raw()
		if err == nil && !reply.Lookup("isWritablePrimary").Boolean() {
			err = fmt.Errorf("%s", reply)
		}

		return err
	})

	return addr
}

// dropNewDatabases drops at the end what databases the test has made.
func dropNewDatabases(t *testing.T) {
	t.Helper()

	c := router(t, 0)
	before, err := c.ListDatabaseNames(opContext(t, opLimit), bson.D{})
	require.NoError(t, err)

	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), opLimit)
		defer cancel()

		names, err := c.ListDatabaseNames(ctx, bson.D{{"name", bson.D{{"$nin", before}}}})
		require.NoError(t, err)

		for _, name := range names {
			require.NoError(t, c.Database(name).Drop(ctx))
		}
	})
}

func TestPyMongoSuite(t *testing.T) {
	dropNewDatabases(t)

	plain, routed := newSuiteRun(t, baseline(t)), newSuiteRun(t, shared.cluster.Router(0).Addr())

	var both sync.WaitGroup
	both.Go(plain.run)
	both.Go(routed.run)
	both.Wait()

	want, got, known := plain.outcomes(t), routed.outcomes(t), exceptions(t)
	passes, skipped, neither := 0, map[string]int{}, 0

	for _, id := range slices.Sorted(maps.Keys(got)) {
		o, reason := got[id], known[id]

		switch {
		case o.passed():
			passes++

			if reason != "" {
				t.Errorf("%s passes: take it out of %s", id, exceptionsFile)
			}
		case o.Skipped != nil:
			if want[id] != nil && want[id].passed() {
				skipped[o.Skipped.Message]++
			} else {
				neither++
			}

			if reason != "" {
				t.Errorf("%s is skipped (%s): take it out of %s", id, o.Skipped.Message, exceptionsFile)
			}
		case reason == "" && (want[id] == nil || want[id].why() == ""):
			t.Errorf("%s fails:\n%s", id, o.why())
		}
	}

	for id := range maps.Keys(known) {
		if got[id] == nil {
			t.Errorf("no test is called %s: take it out of %s", id, exceptionsFile)
		}
	}

	for _, why := range slices.Sorted(maps.Keys(skipped)) {
		t.Logf("%d tests that pass on a mongod are skipped by PyMongo on a router: %s", skipped[why], why)
	}

	t.Logf("%d tests run on neither", neither)
	comparePasses(t, passes)
}

// comparePasses holds the number of passes against the one that is checked in.
func comparePasses(t *testing.T, passes int) {
	t.Helper()

	if *updatePasses && !t.Failed() {
		require.NoError(t, os.WriteFile(passesFile, []byte(strconv.Itoa(passes)+"\n"), 0o644))
	}

	text, err := os.ReadFile(passesFile)
	require.NoError(t, err)

	before, err := strconv.Atoi(strings.TrimSpace(string(text)))
	require.NoError(t, err)

	t.Logf("%d of PyMongo's tests pass on a router, %d is checked in", passes, before)

	switch {
	case passes < before:
		t.Errorf("%d of PyMongo's tests pass, %d did before", passes, before)
	case passes > before:
		t.Errorf("%d of PyMongo's tests pass, more than the %d before: run this test with -update-passes and check %s in", passes, before, passesFile)
	}
}
