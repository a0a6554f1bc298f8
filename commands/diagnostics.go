package commands

import (
	"context"
	"encoding/hex"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/google/uuid"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/shardgate/shardgate/wire/mongoerr"
)

// serverVersion is the MongoDB version that clients are told: the shards'.
const serverVersion = "6.0.5"

// document appends the fields of d and ok.
func (req *request) document(d bson.D) error {
	raw, err := bson.Marshal(d)
	if err != nil {
		return err
	}
	req.Reply.Elems = append(req.Reply.Elems, raw[4:len(raw)-1]...)
	req.Reply.OK()
	return nil
}

func appendString(dst []byte, name, v string) []byte {
	return bsoncore.AppendStringElement(dst, name, v)
}

func ping(_ context.Context, req *request) error {
	req.Reply.OK()
	return nil
}

func buildInfo(_ context.Context, req *request) error {
	return req.document(bson.D{
		{Key: "version", Value: serverVersion},
		{Key: "gitVersion", Value: "shardgate " + req.h.opts.Version},
		{Key: "modules", Value: bson.A{}},
		{Key: "sysInfo", Value: "deprecated"},
		{Key: "versionArray", Value: bson.A{int32(6), int32(0), int32(5), int32(0)}},
		{Key: "buildEnvironment", Value: bson.D{
			{Key: "target_arch", Value: runtime.GOARCH},
			{Key: "target_os", Value: runtime.GOOS},
			{Key: "go", Value: runtime.Version()},
		}},
		{Key: "bits", Value: int32(64)},
		{Key: "debug", Value: false},
		{Key: "maxBsonObjectSize", Value: int32(16777216)},
	})
}

func connectionStatus(_ context.Context, req *request) error {
	info := bson.D{{Key: "authenticatedUsers", Value: bson.A{}}, {Key: "authenticatedUserRoles", Value: bson.A{}}}
	if e, ok := req.Lookup("showPrivileges"); ok {
		if v, _ := e.Bool(); v {
			info = append(info, bson.E{Key: "authenticatedUserPrivileges", Value: bson.A{}})
		}
	}
	return req.document(bson.D{{Key: "authInfo", Value: info}})
}

func getCmdLineOpts(_ context.Context, req *request) error {
	argv := bson.A{}
	for _, a := range req.h.opts.Argv {
		argv = append(argv, a)
	}
	return req.document(bson.D{{Key: "argv", Value: argv}, {Key: "parsed", Value: bson.D{}}})
}

func getLog(_ context.Context, req *request) error {
	name, ok := req.Cmd.First.Str()
	switch {
	case !ok:
		return mongoerr.New(mongoerr.TypeMismatch, "Argument to getLog must be of type String")
	case name == "*":
		return req.document(bson.D{{Key: "names", Value: bson.A{"global", "startupWarnings"}}})
	case name == "global", name == "startupWarnings":
		return req.document(bson.D{{Key: "totalLinesWritten", Value: int32(0)}, {Key: "log", Value: bson.A{}}})
	}
	return mongoerr.New(0, "no RamLog named: "+name)
}

// getNonce answers what drivers still test for secrecy, though nothing uses it any more.
func getNonce(_ context.Context, req *request) error {
	nonce := uuid.New()
	return req.document(bson.D{{Key: "nonce", Value: hex.EncodeToString(nonce[:8])}})
}

// getParameter knows the parameters that clients ask a router for. Others are
// answered as a server does, without a code (CASES.md A3).
func getParameter(_ context.Context, req *request) error {
	fcv := bson.D{{Key: "version", Value: "6.0"}}
	known := bson.D{
		{Key: "featureCompatibilityVersion", Value: fcv},
		{Key: "authSchemaVersion", Value: int32(5)},
		{Key: "enableTestCommands", Value: false},
		{Key: "logComponentVerbosity", Value: bson.D{{Key: "verbosity", Value: int32(0)}}},
		{Key: "maxBSONDepth", Value: int32(200)},
		{Key: "notablescan", Value: false},
		{Key: "requireApiVersion", Value: false},
	}
	if s, ok := req.Cmd.First.Str(); ok && s == "*" {
		return req.document(known)
	}
	out := bson.D{}
	for _, e := range known {
		if _, ok := req.Lookup(e.Key); ok {
			out = append(out, e)
		}
	}
	if len(out) == 0 {
		return mongoerr.New(0, "no option found to get")
	}
	return req.document(out)
}

func hostInfo(_ context.Context, req *request) error {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return req.document(bson.D{
		{Key: "system", Value: bson.D{
			{Key: "currentTime", Value: time.Now()},
			{Key: "hostname", Value: host},
			{Key: "cpuAddrSize", Value: int32(64)},
			{Key: "memSizeMB", Value: memoryMB()},
			{Key: "memLimitMB", Value: memoryMB()},
			{Key: "numCores", Value: int32(runtime.NumCPU())},
			{Key: "cpuArch", Value: runtime.GOARCH},
			{Key: "numaEnabled", Value: false},
		}},
		{Key: "os", Value: bson.D{{Key: "type", Value: runtime.GOOS}, {Key: "name", Value: runtime.GOOS}, {Key: "version", Value: ""}}},
		{Key: "extra", Value: bson.D{}},
	})
}

// memoryMB reads the machine's memory in MiB, 0 where it cannot be told.
func memoryMB() int64 {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	var kb int64
	for line := range strings.Lines(string(b)) {
		rest, ok := strings.CutPrefix(line, "MemTotal:")
		if !ok {
			continue
		}
		for _, c := range rest {
			if c >= '0' && c <= '9' {
				kb = kb*10 + int64(c-'0')
			}
		}
	}
	return kb / 1024
}

func whatsmyuri(_ context.Context, req *request) error {
	return req.document(bson.D{{Key: "you", Value: req.conn.Remote()}})
}

func isdbgrid(_ context.Context, req *request) error {
	return req.document(bson.D{{Key: "isdbgrid", Value: int32(1)}, {Key: "hostname", Value: req.h.opts.Name}})
}

func listCommands(_ context.Context, req *request) error {
	list := bson.D{}
	rows := Table()
	for i := range rows {
		c := &rows[i]
		help := c.Help
		if c.State() == "not yet" {
			help = "Not there yet: answers 238 NotImplemented."
		}
		list = append(list, bson.E{Key: c.Name, Value: bson.D{
			{Key: "help", Value: help},
			{Key: "requiresAuth", Value: !c.Anonymous},
			{Key: "secondaryOk", Value: !c.Write},
			{Key: "adminOnly", Value: c.AdminOnly},
			{Key: "apiVersions", Value: apiVersions(c)},
			{Key: "deprecatedApiVersions", Value: bson.A{}},
		}})
	}
	return req.document(bson.D{{Key: "commands", Value: list}})
}

func apiVersions(c *Command) bson.A {
	if c.APIv1 {
		return bson.A{"1"}
	}
	return bson.A{}
}

func serverStatus(_ context.Context, req *request) error {
	h := req.h
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	up := time.Since(h.started)
	calls := func(name string) int64 { return h.table[name].calls.Load() }
	return req.document(bson.D{
		{Key: "host", Value: h.opts.Name},
		{Key: "version", Value: serverVersion},
		{Key: "process", Value: "mongos"},
		{Key: "pid", Value: int64(os.Getpid())},
		{Key: "uptime", Value: up.Seconds()},
		{Key: "uptimeMillis", Value: up.Milliseconds()},
		{Key: "uptimeEstimate", Value: int64(up.Seconds())},
		{Key: "localTime", Value: time.Now()},
		{Key: "connections", Value: bson.D{
			{Key: "current", Value: int32(req.conn.Connections())},
			{Key: "available", Value: int32(1 << 20)},
			{Key: "totalCreated", Value: int32(req.conn.ID)},
		}},
		{Key: "mem", Value: bson.D{{Key: "bits", Value: int32(64)}, {Key: "resident", Value: int32(m.Sys >> 20)}, {Key: "supported", Value: true}}},
		{Key: "metrics", Value: bson.D{{Key: "commands", Value: bson.D{
			{Key: "total", Value: h.counts.commands.Load()}, {Key: "failed", Value: h.counts.failed.Load()},
		}}, {Key: "cursor", Value: bson.D{{Key: "open", Value: bson.D{{Key: "total", Value: int64(h.router.OpenCursors())}}}}}}},
		{Key: "opcounters", Value: bson.D{
			{Key: "insert", Value: calls("insert")},
			{Key: "query", Value: calls("find")},
			{Key: "update", Value: calls("update")},
			{Key: "delete", Value: calls("delete")},
			{Key: "getmore", Value: calls("getMore")},
			{Key: "command", Value: h.counts.commands.Load()},
		}},
	})
}

func refuseCompact(context.Context, *request) error {
	return mongoerr.New(mongoerr.CommandNotSupported, "compact not allowed through mongos")
}

// refuseReplSetGetStatus has no code but the field info, by which tools recognise a
// mongos (MONGOS.md §1.2).
func refuseReplSetGetStatus(context.Context, *request) error {
	e := mongoerr.New(0, "replSetGetStatus is not supported through mongos")
	e.Extra = appendString(nil, "info", "mongos")
	return e
}
