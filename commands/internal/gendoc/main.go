// Command gendoc writes the list of commands into README.md, between two markers, from
// the command table.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/shardgate/shardgate/commands"
)

// The markers. What stands between them is replaced.
const (
	begin = "<!-- commands: made by `make gen` from commands.Table -->\n"
	end   = "<!-- end of commands -->\n"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: gendoc README.md")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "gendoc:", err)
		os.Exit(1)
	}
}

// run rewrites the file where its list is out of date.
func run(path string) error {
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	text, err := replace(old, render(commands.Table()))
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	if bytes.Equal(old, text) {
		return nil
	}
	return os.WriteFile(path, text, 0o644)
}

// replace puts list between the markers.
func replace(text []byte, list string) ([]byte, error) {
	before, rest, ok := bytes.Cut(text, []byte(begin))
	if !ok {
		return nil, errors.New("the first marker is not there")
	}
	_, after, ok := bytes.Cut(rest, []byte(end))
	if !ok {
		return nil, errors.New("the second marker is not there")
	}
	return bytes.Join([][]byte{before, []byte(begin), []byte(list), []byte(end), after}, nil), nil
}

// render lists the commands by their state: those that work with their help, the
// others by name.
func render(table []commands.Command) string {
	var works, refused, notYet []string
	for i := range table {
		c := &table[i]
		switch c.State() {
		case "works":
			works = append(works, fmt.Sprintf("| %s | %s |\n", names(c), c.Help))
		case "refused":
			refused = append(refused, names(c))
		default:
			notYet = append(notYet, names(c))
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\n**%d commands work:**\n\n| command | what it does |\n|---|---|\n%s", len(works), strings.Join(works, ""))
	fmt.Fprintf(&b, "\n**Refused**, with the error that clients know from MongoDB's own router: %s.\n", strings.Join(refused, ", "))
	fmt.Fprintf(&b, "\n**Not there yet** (they answer 238 NotImplemented): %s.\n\n", strings.Join(notYet, ", "))
	return b.String()
}

// names is a command's name with its other spellings.
func names(c *commands.Command) string {
	s := "`" + c.Name + "`"
	for _, a := range c.Aliases {
		s += ", `" + a + "`"
	}
	return s
}
