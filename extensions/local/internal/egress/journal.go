// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

package egress

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"
)

// journal writes down what was refused and what failed. What repeats is written once in a
// window and counted, and the number of lines in a window has a bound: a
// program that tries everything fills neither the disk nor the reader's head.
type journal struct {
	now func() time.Time

	mu      sync.Mutex
	out     io.Writer
	seen    map[string]int // lines of this window and their number
	dropped int            // lines of this window beyond maxLines
}

const (
	journalWindow = 10 * time.Second
	maxLines      = 100 // in a window
	maxTarget     = 260 // bytes of a name, with a port
)

func newJournal(out io.Writer, now func() time.Time) *journal {
	return &journal{now: now, out: out, seen: map[string]int{}}
}

// refused notes what the policy forbids.
func (j *journal) refused(protocol, target, reason string) {
	j.note(protocol, target, "refused: "+reason)
}

// failed notes what is allowed and did not work.
func (j *journal) failed(protocol, target string, err error) {
	j.note(protocol, target, "failed: "+printable(clip(err.Error(), 2*maxTarget)))
}

func (j *journal) note(protocol, target, what string) {
	line := fmt.Sprintf("%s %s %s", protocol, quote(clip(target, maxTarget)), what)
	j.mu.Lock()
	defer j.mu.Unlock()
	switch {
	case j.seen[line] > 0:
		j.seen[line]++
	case len(j.seen) >= maxLines:
		j.dropped++
	default:
		j.seen[line] = 1
		j.write(line)
	}
}

// roll ends a window: it says how often what was written has repeated.
func (j *journal) roll() {
	j.mu.Lock()
	defer j.mu.Unlock()
	for line, times := range j.seen {
		if times > 1 {
			j.write(fmt.Sprintf("%s (%d times more)", line, times-1))
		}
	}
	if j.dropped > 0 {
		j.write(fmt.Sprintf("%d other attempts are not listed", j.dropped))
	}
	clear(j.seen)
	j.dropped = 0
}

// write writes a line. A full disk must not stop the gateway.
func (j *journal) write(line string) {
	_, _ = fmt.Fprintf(j.out, "%s %s\n", j.now().UTC().Format(time.RFC3339), line)
}

// rollFor ends a window after another, for the rest of the process.
func (j *journal) rollFor() {
	for range time.Tick(journalWindow) {
		j.roll()
	}
}

func clip(text string, most int) string { return text[:min(len(text), most)] }

// quote quotes what a terminal would not show as it is: the sandbox chose it.
func quote(text string) string {
	if strings.ContainsFunc(text, func(c rune) bool { return c <= ' ' || c > '~' }) {
		return strconv.Quote(text)
	}
	return text
}

// printable keeps a text to what a terminal shows as it is.
func printable(text string) string {
	return strings.Map(func(c rune) rune {
		if c < ' ' || c > '~' {
			return '?'
		}
		return c
	}, text)
}
