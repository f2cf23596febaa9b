// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package conformance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// Factory returns a new instance of the extension, not configured, and what
// ends it. All instances of one suite meet at the same backend.
type Factory func(ctx context.Context) (ext sdk.Extension, end func(), err error)

// Suite says what is checked and with what. Only New is needed.
type Suite struct {
	New Factory
	// Config is the backend's configuration, a JSON object; nil is empty.
	Config []byte
	// Fleet is what the run's sandboxes belong to. Every sandbox in it, and in
	// the fleet of the same name with "-other" at its end, is taken for the
	// run's own. The default is made up for the run.
	Fleet string
	// Profile is what a sandbox is made from when a rule needs nothing
	// special. The default is the backend's own root.
	Profile sdk.Profile
	// Commands are the programs inside of the sandboxes; the default is POSIX.
	Commands Commands
	// ImageFile is the path of an image that fits the backend; empty leaves
	// out the rule about images by path.
	ImageFile string
	// Limits are tried one at a time where the document claims them. The
	// defaults are small: a rule goes beyond each.
	Limits Limits
	// Faults make the backend lie; one that is not there leaves out its rule.
	Faults map[Fault]func() (heal func())
	// Exclude leaves rules out, by id, and says why.
	Exclude map[string]string
	// Only names the rules that are run; none is all of them.
	Only []string
	// Timing are the times of the run.
	Timing Timing
	// Many is how many sandboxes a complete listing is tried with; default 5.
	Many int
	// Page is how many sandboxes one page of the backend's listing holds. The
	// rules about pages that are lost or repeated make one more. Default 0.
	Page int
	// Rounds is how many races of extend and claim are run; default 10.
	Rounds int
	// Parallel is how many rules [Run] has under way at a time; default 4.
	Parallel int
	// Clock is the time that deadlines are made and waited for by, which has
	// to be the backend's; default the machine's.
	Clock Clock
}

// Limits are the limits that the rules try.
type Limits struct {
	CPUs   float64 // default 0.1
	Memory int64   // bytes; default 256 MiB
	Pids   int64   // default 64
	Disk   int64   // bytes; default 32 MiB
}

// Timing are the times of a run. None of them decides whether a rule passes:
// they are how long a short life is, and after how long something that does
// not come is taken not to come at all.
type Timing struct {
	// Short is the life of a sandbox whose end is waited for. It has to be
	// longer than a create takes. Default 3 s.
	Short time.Duration
	// Grace is how long something that has to happen may take; default 30 s.
	Grace time.Duration
	// Poll is the pause between two looks; default 50 ms.
	Poll time.Duration
	// Rule bounds one rule; default 3 min.
	Rule time.Duration
	// Budget bounds the whole run; default 30 min. What it leaves no time for
	// is an error in the report.
	Budget time.Duration
}

// Clock tells the time and waits.
type Clock interface {
	Now() time.Time
	// Sleep waits for d or until the context ends, whose error it returns.
	Sleep(ctx context.Context, d time.Duration) error
}

type machineClock struct{}

func (machineClock) Now() time.Time {
	return time.Now() //nolint:forbidigo // this is the clock that the rest of the package is given
}

func (machineClock) Sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// complete fills the defaults in and refuses what would leave something out
// without anyone noticing.
func (s Suite) complete() (Suite, error) {
	if s.New == nil {
		return s, errors.New("the suite has no factory")
	}
	if s.Fleet == "" {
		s.Fleet = "conformance-" + randomText(8)
	}
	if s.Profile.Name == "" {
		s.Profile.Name = "conformance"
	}
	if s.Clock == nil {
		s.Clock = machineClock{}
	}
	s.Limits = Limits{
		CPUs: cmp.Or(s.Limits.CPUs, 0.1), Memory: cmp.Or(s.Limits.Memory, 256<<20),
		Pids: cmp.Or(s.Limits.Pids, 64), Disk: cmp.Or(s.Limits.Disk, 32<<20),
	}
	s.Timing = Timing{
		Short: cmp.Or(s.Timing.Short, 3*time.Second), Grace: cmp.Or(s.Timing.Grace, 30*time.Second),
		Poll: cmp.Or(s.Timing.Poll, 50*time.Millisecond), Rule: cmp.Or(s.Timing.Rule, 3*time.Minute),
		Budget: cmp.Or(s.Timing.Budget, 30*time.Minute),
	}
	s.Many, s.Rounds, s.Parallel = cmp.Or(s.Many, 5), cmp.Or(s.Rounds, 10), cmp.Or(s.Parallel, 4)
	known := map[string]bool{}
	for _, r := range Rules() {
		known[r.ID] = true
	}
	for id, reason := range s.Exclude {
		if !known[id] || reason == "" {
			return s, fmt.Errorf("the suite excludes %q: it is no rule, or no reason is given", id)
		}
	}
	for _, id := range s.Only {
		if !known[id] {
			return s, fmt.Errorf("the suite names %q, which is no rule", id)
		}
	}
	for fault := range s.Faults {
		if !fault.known() {
			return s, fmt.Errorf("the suite has a hook for %q, which is no fault", fault)
		}
	}
	if err := s.Commands.complete(); err != nil {
		return s, err
	}
	s.Commands = s.Commands.withDefaults()
	return s, nil
}
