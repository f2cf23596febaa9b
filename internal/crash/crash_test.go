// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build failpoints && linux

package crash

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/failpoint"
)

const (
	lanes = 8
	// points of each kind and verb: in an ordinary run, and in a full one.
	fewPoints, allPoints = 2, 50
)

// suite is what the cases share.
type suite struct {
	seed      uint64
	terraform string
	traces    map[string][]hit // by verb
	undone    time.Duration    // how long an undisturbed destroy takes here
	busy      busy
	missed    atomic.Int32 // cases in which the strike did not fall
}

func TestCrash(t *testing.T) {
	seed, err := strconv.ParseUint(cmp.Or(os.Getenv("CRASH_SEED"), strconv.FormatInt(time.Now().UnixNano(), 10)), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	only, err := regexp.Compile(os.Getenv("CRASH_CASE"))
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("crash: CRASH_SEED=%d\n", seed)
	terraform, err := terraformPath()
	if err != nil {
		t.Fatal(err)
	}
	s := &suite{seed: seed, terraform: terraform, traces: map[string][]hit{}, busy: make(busy, runtime.NumCPU()+1)}
	bin := programs(t)
	plans := s.plans(only)
	var all []*lane
	for range min(lanes, len(plans)) {
		all = append(all, newLane(t, bin, terraform))
	}
	for _, v := range verbs {
		if !s.traceVerb(t, all[0], v) {
			return
		}
	}
	for _, point := range []failpoint.Point{"supervisor.deadline.seen", "supervisor.deadline.recorded"} {
		if only.MatchString("expiry/" + string(point)) {
			t.Run("expiry/"+string(point), func(t *testing.T) { s.expiry(t, all[0], point) })
		}
	}
	// Whoever is told to end finishes the cases that have begun, and cleans up.
	ctx, stop := signal.NotifyContext(t.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	work := make(chan plan)
	var running sync.WaitGroup
	for _, l := range all {
		running.Go(func() {
			for p := range work {
				t.Run(p.name(), func(t *testing.T) { s.run(t, l, p) })
			}
		})
	}
	begun := 0
	for _, p := range plans {
		select {
		case work <- p:
			begun++
			continue
		case <-ctx.Done():
			t.Errorf("told to end after %d of %d cases", begun, len(plans))
		}
		break
	}
	close(work)
	running.Wait()
	t.Logf("%d cases, in %d of them the strike did not fall", begun, s.missed.Load())
	if missed := int(s.missed.Load()); missed > 1+begun/20 {
		t.Errorf("the strike did not fall in %d of %d cases", missed, begun)
	}
	for _, p := range never(t, all) {
		if os.Getenv("CRASH_CASE") == "" {
			t.Errorf("the failpoint %s was never hit", p)
		} else {
			t.Logf("the failpoint %s was not hit by these cases", p)
		}
	}
}

// plans returns the cases in the order in which they run.
func (s *suite) plans(only *regexp.Regexp) []plan {
	points := fewPoints
	if os.Getenv("SANDBOXER_TEST_FULL") != "" || os.Getenv("CRASH_CASE") != "" {
		points = allPoints
	}
	var plans []plan
	for index := range points {
		for _, kind := range kinds {
			for _, v := range verbs {
				if p := (plan{v, kind, index}); only.MatchString(p.name()) {
					plans = append(plans, p)
				}
			}
		}
	}
	return plans
}

// never returns the failpoints that no process has reached.
func never(t *testing.T, all []*lane) []failpoint.Point {
	t.Helper()
	ever := map[failpoint.Point]bool{}
	for _, l := range all {
		l.stage.mu.Lock()
		maps.Copy(ever, l.stage.ever)
		l.stage.mu.Unlock()
	}
	known := declared(t)
	for p := range ever {
		if !slices.Contains(known, p) {
			t.Errorf("the failpoint %s is not one of the constants", p)
		}
	}
	return slices.DeleteFunc(known, func(p failpoint.Point) bool { return ever[p] })
}

// traceVerb records which points a verb reaches when nothing happens.
func (s *suite) traceVerb(t *testing.T, l *lane, v verb) bool {
	return t.Run("trace/"+v.name, func(t *testing.T) {
		s.busy.enter()
		defer s.busy.leave()
		s.begin(t, l, v)
		l.stage.mu.Lock()
		l.stage.note = func() map[string]bool {
			alive := map[string]bool{}
			for _, p := range l.ours() {
				alive[p.role] = true
			}
			return alive
		}
		l.stage.mu.Unlock()
		l.stage.set(nil)
		s.command(t, l, v.command...)
		s.traces[v.name], _ = l.stage.clear()
		l.stage.mu.Lock()
		l.stage.note = nil
		l.stage.mu.Unlock()
		begun := time.Now()
		s.command(t, l, "destroy")
		s.undone = max(s.undone, time.Since(begun))
		s.end(t, l, map[string]bool{})
		t.Logf("%d hits", len(s.traces[v.name]))
	})
}

// expiry kills a supervisor while it ends its sandbox at the deadline.
func (s *suite) expiry(t *testing.T, l *lane, point failpoint.Point) {
	s.busy.enter()
	defer s.busy.leave()
	s.begin(t, l, verb{})
	l.stage.set(&strike{point: point, nth: 1, act: func(h hit) string {
		_ = syscall.Kill(h.pid, syscall.SIGKILL)
		return ""
	}})
	if said, err := l.run(t.Context(), filepath.Join(l.bin, "sandboxer"), "create", "--profile", "shell", "--ttl", "15s"); err != nil {
		t.Errorf("create: %v\n%s", err, said)
	}
	s.outlive(t, l, map[string]bool{})
	if _, struck := l.stage.clear(); struck == nil {
		t.Errorf("no supervisor has reached %s", point)
	}
	s.end(t, l, map[string]bool{})
}

// begin empties what the case before has left to Terraform and the ledger,
// and makes what the verb needs.
func (s *suite) begin(t *testing.T, l *lane, v verb) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(l.work, "*terraform.tfstate*"))
	if err != nil {
		t.Fatal(err)
	}
	hidden, _ := filepath.Glob(filepath.Join(l.work, ".terraform.tfstate*"))
	for _, file := range append(append(files, hidden...), filepath.Join(l.state, "ledger")) {
		if err := os.RemoveAll(file); err != nil {
			t.Fatal(err)
		}
	}
	if len(v.prepare) > 0 {
		s.command(t, l, v.prepare...)
	}
}

// command runs Terraform, which must succeed.
func (s *suite) command(t *testing.T, l *lane, args ...string) {
	t.Helper()
	if said, err := l.run(t.Context(), s.terraform, append(args, "-auto-approve", "-no-color")...); err != nil {
		t.Errorf("terraform %s: %v\n%s", strings.Join(args, " "), err, said)
	}
}

// run runs one case.
func (s *suite) run(t *testing.T, l *lane, p plan) {
	s.busy.enter()
	defer s.busy.leave()
	s.begin(t, l, p.verb)
	at, b := p.place(s.seed, s.traces[p.verb.name]), p.newBlow(s.seed)
	t.Logf("CRASH_SEED=%d CRASH_CASE=^%s$: %s at hit %d of %s, held for %s, group %v", s.seed, p.name(), p.kind, at.nth, at.point, b.hold, b.group)

	ended := make(chan struct{})
	terraform := l.command(t.Context(), s.terraform, append(slices.Clone(p.verb.command), "-auto-approve", "-no-color")...)
	var said bytes.Buffer
	terraform.Stdout, terraform.Stderr = &said, &said
	l.stage.set(b.strike(l, at, terraform, ended))
	if err := terraform.Start(); err != nil {
		t.Fatal(err)
	}
	stuck := time.AfterFunc(patience, func() {
		t.Errorf("terraform did not end within %s", patience)
		_ = syscall.Kill(-terraform.Process.Pid, syscall.SIGKILL)
	})
	if b.hold > time.Second {
		s.busy.leave()
	}
	err := terraform.Wait()
	if b.hold > time.Second {
		s.busy.enter()
	}
	stuck.Stop()
	took := time.Since(b.fell)
	close(ended)
	b.steps.Wait()
	b.hear(said.String())
	_, struck := l.stage.clear()
	defer func() {
		if t.Failed() {
			t.Logf("what Terraform said (%v):\n%s", err, said.String())
		}
	}()
	switch {
	case struck == nil:
		s.missed.Add(1)
		t.Logf("the strike did not fall")
	case b.interrupted():
		s.inTime(t, b, took)
	}
	s.judge(t, l, p, b, struck != nil)
}

// inTime holds an interrupted Terraform against a runner's patience. On a
// machine where an undisturbed destroy takes longer than a fifth of that, so
// may this.
func (s *suite) inTime(t *testing.T, b *blow, took time.Duration) {
	t.Helper()
	if bound := max(runnerFirst, 5*s.undone); took-b.hold > bound {
		t.Errorf("Terraform took %s to end after the interrupt, more than %s", took-b.hold, bound)
	}
}
