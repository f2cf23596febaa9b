// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package saasstub

// The main process of a box.
//
// It is run to its end when the box is made, on a clock of its own that only
// its sleeping moves. What it wrote waits until the box has run for as long:
// so its log grows by the vendor's clock, and stands still in a paused box,
// without anything that goes on at the same time.

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// mainProcess is the part of a box that is about it.
type mainProcess struct {
	Log    []byte        `json:"log"`
	Coming []output      `json:"coming,omitempty"` // by After, what is not in the log yet
	Ran    time.Duration `json:"ran"`              // for how long the box has run
	RanAt  time.Time     `json:"ran_at"`           // up to when Ran is counted
}

// output is what the main process wrote after some time of running.
type output struct {
	After time.Duration `json:"after"`
	Text  []byte        `json:"text"`
}

// run lets the main process become what it has become by now, or by the end
// of its box.
func (m *mainProcess) run(running bool, now, end time.Time) {
	if running {
		until := now
		if end.Before(now) {
			until = end
		}
		m.Ran += max(0, until.Sub(m.RanAt))
		for len(m.Coming) > 0 && m.Coming[0].After <= m.Ran {
			m.Log = append(m.Log, m.Coming[0].Text...)
			m.Coming = m.Coming[1:]
		}
	}
	m.RanAt = now
}

// own is the clock of a main process, and what it writes to.
type own struct {
	ran     time.Duration
	written []output
}

func (o *own) Now() time.Time { return time.Time{}.Add(o.ran) }

func (o *own) Sleep(_ context.Context, d time.Duration) error {
	o.ran += max(0, d)
	return nil
}

func (o *own) Write(text []byte) (int, error) {
	if last := len(o.written) - 1; last >= 0 && o.written[last].After == o.ran {
		o.written[last].Text = append(o.written[last].Text, text...)
	} else {
		o.written = append(o.written, output{o.ran, bytes.Clone(text)})
	}
	return len(text), nil
}

// alone is the file system of a main process: it writes nothing but its log.
type alone struct{ files map[string]BoxFile }

func (f alone) read(name string) (BoxFile, bool) { file, ok := f.files[name]; return file, ok }
func (alone) write(string, BoxFile)              {}
func (alone) remove(string) bool                 { return false }
func (f alone) names() []string                  { return slices.Collect(maps.Keys(f.files)) }

// runMain finds out what the main process writes, and when.
func (b *box) runMain(command []string) {
	var own own
	p := &process{ctx: context.Background(), clock: &own, files: alone{b.Files}, env: b.Env, dir: b.Workdir, stdin: strings.NewReader(""), stdout: &own, stderr: &own}
	if code, err := p.run(command); err != nil || code != 0 {
		fmt.Fprintf(&own, "the main process ended with %d\n", code)
	}
	b.Coming = own.written
}
