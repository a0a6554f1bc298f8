package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/shardgate/shardgate/commands"
)

func TestReplaceKeepsWhatIsAround(t *testing.T) {
	t.Parallel()
	got, err := replace([]byte("a\n"+begin+"old\n"+end+"z\n"), "new\n")
	require.NoError(t, err)
	require.Equal(t, "a\n"+begin+"new\n"+end+"z\n", string(got))
}

func TestReplaceMissesMarkers(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "a\n" + begin, "a\n" + end, end + begin} {
		_, err := replace([]byte(text), "new\n")
		require.Error(t, err, "%q", text)
	}
}

func TestRenderNamesEveryCommand(t *testing.T) {
	t.Parallel()
	table := commands.Table()
	list := render(table)
	for i := range table {
		require.Contains(t, list, names(&table[i]))
	}
	require.Contains(t, list, "| `findAndModify`, `findandmodify` | Changes one document and returns it. |\n")
	require.Regexp(t, "Refused[^\n]*`compact`", list)
	require.Regexp(t, "Not there yet[^\n]*`mapReduce`", list)
}

// TestREADMEIsUpToDate fails where `make gen` was forgotten.
func TestREADMEIsUpToDate(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../../../README.md")
	require.NoError(t, err)
	path := filepath.Join(t.TempDir(), "README.md")
	require.NoError(t, os.WriteFile(path, readme, 0o600))
	require.NoError(t, run(path))
	after, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(readme), string(after))
}
