package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"syscall"
	"time"

	"github.com/shardgate/shardgate/cmd/shardgate/dev/nullshard"
)

// settings of a run.
type settings struct {
	binary  string // the release binary
	long    bool
	rounds  int           // turns of each side
	round   time.Duration // one turn
	only    *regexp.Regexp
	idle    int    // idle clients whose memory is measured
	json    string // file for the figures
	profile string // workload of which shardgate's profile is taken
	gate    bool   // only look whether the router costs too much
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()

	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// run does what the arguments ask for. The program starts itself as the relay and as the null shards, so that the kernel counts their
// processor time apart.
func run(ctx context.Context, args []string, out io.Writer) error {
	if len(args) == 3 {
		switch args[0] {
		case "relay":
			return relay(ctx, args[1], args[2])
		case "null":
			return null(ctx, args[1], args[2])
		}
	}

	s, err := parse(args)
	if err != nil {
		return err
	}

	if s.gate {
		return gate(ctx, s, out)
	}

	b, err := open(ctx, s)
	if err != nil {
		return err
	}
	defer b.close()

	if s.profile != "" {
		return b.takeProfile(ctx, s.profile, out)
	}

	if err := b.all(ctx); err != nil {
		return err
	}

	b.report.write(out)

	if s.json == "" {
		return nil
	}

	text, err := json.MarshalIndent(&b.report, "", " ")
	if err != nil {
		return err
	}

	return os.WriteFile(s.json, append(text, '\n'), 0o644)
}

func parse(args []string) (*settings, error) {
	s := &settings{}
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.StringVar(&s.binary, "binary", "bin/shardgate", "the shardgate program, not built with -race")
	flags.BoolVar(&s.long, "long", false, "ten minutes instead of one")
	flags.IntVar(&s.rounds, "rounds", 0, "turns of each side (default 3, with -long 9)")
	flags.DurationVar(&s.round, "round", 0, "how long one turn takes (default 80ms, with -long 500ms)")
	only := flags.String("only", "", "run only what matches this regular expression: BACKEND/WORKLOAD/CLIENTS")
	flags.IntVar(&s.idle, "idle", 2000, "idle clients whose memory is measured")
	flags.StringVar(&s.json, "json", "", "write the figures into this file")
	flags.StringVar(&s.profile, "profile", "", "take a processor profile of shardgate under BACKEND/WORKLOAD/CLIENTS into profile.pb.gz")
	flags.BoolVar(&s.gate, "gate", false, "only look whether shardgate costs too much, for `make test`")

	if err := flags.Parse(args); err != nil {
		return nil, err
	}

	if flags.NArg() > 0 {
		return nil, errors.New("unknown arguments")
	}

	if s.rounds == 0 {
		s.rounds = map[bool]int{false: 3, true: 9}[s.long]
	}

	if s.round == 0 {
		s.round = map[bool]time.Duration{false: 80 * time.Millisecond, true: 500 * time.Millisecond}[s.long]
	}

	var err error
	s.only, err = regexp.Compile(*only)

	return s, err
}

// null is a null shard, the primary of the set, until ctx ends.
func null(ctx context.Context, set, addr string) error {
	l, err := listen(ctx, addr)
	if err != nil {
		return err
	}

	s, err := nullshard.New(set, addr)
	if err == nil {
		s.Serve(l)
	}

	return err
}
