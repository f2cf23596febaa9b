// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sandbox"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// maxSecret bounds the value of one secret, in bytes.
const maxSecret = 1 << 20

// durationFlag is a flag that takes a Go duration longer than zero.
type durationFlag time.Duration

func (d *durationFlag) String() string {
	if *d == 0 {
		return ""
	}
	return time.Duration(*d).String()
}

func (d *durationFlag) Set(text string) error {
	parsed, err := sandbox.ParseDuration(text)
	*d = durationFlag(parsed)
	return err
}

func (*durationFlag) Type() string { return "DURATION" }

// timeFlag is a flag that takes a point in time.
type timeFlag time.Time

func (t *timeFlag) String() string {
	if time.Time(*t).IsZero() {
		return ""
	}
	return time.Time(*t).Format(time.RFC3339)
}

func (t *timeFlag) Set(text string) error {
	parsed, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return fmt.Errorf("%q is not a time (want for example \"2030-01-31T18:00:00Z\")", text)
	}
	*t = timeFlag(parsed)
	return nil
}

func (*timeFlag) Type() string { return "TIME" }

// pairsFlag is a flag KEY=VALUE that may be given several times.
type pairsFlag struct{ pairs map[string]string }

func (p *pairsFlag) String() string { return strings.Join(sortedKeys(p.pairs), ",") }

func (p *pairsFlag) Set(text string) error {
	key, value, found := strings.Cut(text, "=")
	if !found || key == "" {
		return fmt.Errorf("KEY=VALUE is wanted")
	}
	if p.pairs == nil {
		p.pairs = map[string]string{}
	}
	p.pairs[key] = value
	return nil
}

func (*pairsFlag) Type() string { return "KEY=VALUE" }

// secretsFlag names secrets and where their values are. A value itself is
// never an argument: every process of the machine can read those.
type secretsFlag struct{ from map[string]string }

func (s *secretsFlag) String() string { return strings.Join(sortedKeys(s.from), ",") }

func (s *secretsFlag) Set(text string) error {
	name, source, given := strings.Cut(text, "=")
	switch {
	case name == "":
		return fmt.Errorf("NAME, NAME=@FILE or NAME=- is wanted")
	case given && source != "-" && (!strings.HasPrefix(source, "@") || source == "@"):
		// The argument stays out of the message: it may be the value.
		return fmt.Errorf("the value of a secret is never an argument: NAME takes it from the environment, NAME=@FILE from a file, NAME=- from stdin")
	}
	if s.from == nil {
		s.from = map[string]string{}
	}
	s.from[name] = source
	return nil
}

// secretsType is how the flag of secrets is told from others.
const secretsType = "NAME[=@FILE|=-]"

func (*secretsFlag) Type() string { return secretsType }

// read returns the secrets.
func (s *secretsFlag) read(a *app) (map[string]sdk.Secret, error) {
	secrets := map[string]sdk.Secret{}
	stdin := ""
	for _, name := range sortedKeys(s.from) {
		var content []byte
		var err error
		switch source := s.from[name]; {
		case source == "-":
			if stdin != "" {
				return nil, usage("--secret %s: stdin is already the value of %s", name, stdin)
			}
			stdin = name
			content, err = io.ReadAll(io.LimitReader(a.Stdin, maxSecret+1))
		case source != "":
			content, err = readBounded(source[1:], maxSecret)
		default:
			value := a.Getenv(name)
			if value == "" {
				return nil, usage("--secret %s: the environment has no variable of that name", name)
			}
			content = []byte(value)
		}
		if err != nil {
			return nil, fmt.Errorf("--secret %s: %w", name, err)
		}
		if len(content) > maxSecret {
			return nil, fmt.Errorf("--secret %s: the value is larger than %d MiB", name, maxSecret>>20)
		}
		secrets[name] = sdk.Secret(content)
	}
	return secrets, nil
}

func readBounded(file string, most int64) ([]byte, error) {
	handle, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer handle.Close()
	return io.ReadAll(io.LimitReader(handle, most+1))
}

// attributionFlags are whose a sandbox is and what it is for.
func attributionFlags(cmd *cobra.Command, into *sandbox.Attribution) {
	cmd.Flags().StringVar(&into.Owner, "owner", "", "`NAME` of the team or person that it is for")
	cmd.Flags().StringVar(&into.Task, "task", "", "`TEXT` that says what it is for")
	cmd.Flags().StringVar(&into.Run, "run", "", "`URL` or id of the run that makes it")
}

// backendFlag names a backend. What it means when left out differs by verb.
func backendFlag(cmd *cobra.Command, into *string, otherwise string) {
	cmd.Flags().StringVar(into, "backend", "", "`NAME` of the backend (default: "+otherwise+")")
}

const (
	whereItIs  = "where it is"
	allOfThem  = "all"
	theDefault = "the configured one"
)

// sandboxID and snapshotID check an argument before anything is opened.
func sandboxID(id string) error {
	if err := sandbox.ParseID(id); err != nil {
		return usage("%w; `sandboxer list` shows the ids", err)
	}
	return nil
}

func snapshotID(id string) error {
	if err := sandbox.ParseSnapshotID(id); err != nil {
		return usage("%w; `sandboxer snapshot list` shows the ids", err)
	}
	return nil
}

// exactly is [cobra.ExactArgs] with words for what is wanted.
func exactly(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != len(names) {
			return usage("%s wants %s", cmd.CommandPath(), cmp.Or(strings.Join(names, " and "), "no argument"))
		}
		return nil
	}
}

// isTerminal reports whether a stream is a terminal.
func isTerminal(stream any) bool {
	file, is := stream.(*os.File)
	return is && term.IsTerminal(int(file.Fd()))
}

func absolute(dir string) (string, error) { return filepath.Abs(dir) }

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// logger gets the log lines of extensions, when SANDBOXER_LOG names a level.
func (a *app) logger() hclog.Logger {
	level := hclog.LevelFromString(a.Getenv("SANDBOXER_LOG"))
	if level == hclog.NoLevel {
		return nil
	}
	return hclog.New(&hclog.LoggerOptions{Name: "sandboxer", Level: level, Output: a.Stderr})
}
