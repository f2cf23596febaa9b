// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package cli

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/clock"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// redrawEvery bounds how often the progress line is drawn.
const redrawEvery = 100 * time.Millisecond

// progress draws one line about long work, when a terminal is there.
type progress struct {
	out   io.Writer // nil draws nothing
	clock clock.Clock

	mu    sync.Mutex
	phase string
	drawn time.Time
	shown bool
}

func (a *app) progress() *progress {
	p := &progress{clock: a.Clock}
	if isTerminal(a.Stderr) {
		p.out = a.Stderr
	}
	return p
}

// told draws one step.
func (p *progress) told(step sdk.Progress) {
	if p.out == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.clock.Now()
	if step.Phase == p.phase && now.Sub(p.drawn) < redrawEvery {
		return
	}
	p.phase, p.drawn, p.shown = step.Phase, now, true
	// A terminal that is gone is no reason to end the work.
	_, _ = fmt.Fprintf(p.out, "\r\x1b[K%s", progressLine(step))
}

func progressLine(step sdk.Progress) string {
	line := step.Phase
	if step.Message != "" {
		line += ": " + step.Message
	}
	switch {
	case step.Total > 0:
		line += fmt.Sprintf(" %s of %s (%d%%)", sizeOf(step.Done), sizeOf(step.Total), step.Done*100/step.Total)
	case step.Done > 0:
		line += " " + sizeOf(step.Done)
	}
	// A line that wraps can't be drawn over.
	const most = 78
	if runes := []rune(printable(line, false)); len(runes) > most {
		return string(runes[:most-1]) + "…"
	}
	return printable(line, false)
}

// done takes the line away.
func (p *progress) done() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.out != nil && p.shown {
		_, _ = fmt.Fprint(p.out, "\r\x1b[K")
	}
}
