// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build failpoints && linux

package crash

// What is done to whom, and where: one case from a seed.

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// verb is what Terraform does when the strike falls.
type verb struct {
	name    string
	prepare []string // arguments of Terraform before; none is nothing
	command []string
}

var verbs = []verb{
	{"create", nil, []string{"apply"}},
	{"snapshot", []string{"apply"}, []string{"apply", "-var", "snapshot=true"}},
	{"destroy", []string{"apply", "-var", "snapshot=true"}, []string{"destroy"}},
}

// The kinds of strikes.
const (
	interrupt   = "sigint"
	terminate   = "sigterm"
	runner      = "ci" // SIGINT, 7.5 s, SIGTERM, 2.5 s, SIGKILL of the whole group: what CI runners do
	killRunning = "kill-terraform"
	killOf      = "kill-" // a role
	failure     = "error" // the act fails: a full disk, a lost answer
)

var kinds = []string{interrupt, terminate, runner, killRunning, killOf + roleProvider, killOf + roleExtension, killOf + roleSupervisor, failure}

// The steps of a CI runner.
const (
	runnerFirst = 7500 * time.Millisecond
	runnerThen  = 2500 * time.Millisecond
)

// plan is one case before it is run.
type plan struct {
	verb  verb
	kind  string
	index int
}

func (p plan) name() string { return fmt.Sprintf("%s/%s/%02d", p.verb.name, p.kind, p.index) }

// random returns the case's own source, the same for each run with the seed.
func random(seed uint64, name string) *rand.Rand {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name))
	return rand.New(rand.NewPCG(seed, h.Sum64()))
}

// place chooses the hit at which the strike falls: each hit of the verb's
// trace at which the victim lives comes once before one comes again.
func (p plan) place(seed uint64, trace []hit) hit {
	victim, isKill := victimOf(p.kind)
	var places []hit
	for _, h := range trace {
		if !isKill || h.alive[victim] {
			places = append(places, h)
		}
	}
	order := random(seed, p.verb.name+p.kind).Perm(len(places))
	return places[order[p.index%len(order)]]
}

// victimOf returns the role that a kind kills, when it kills one of ours.
func victimOf(kind string) (string, bool) {
	for _, role := range []string{roleProvider, roleExtension, roleSupervisor} {
		if kind == killOf+role {
			return role, true
		}
	}
	return "", false
}

// blow is a strike with what it leaves for the judge.
type blow struct {
	kind  string
	hold  time.Duration // how long the program is held at the point after the strike
	group bool          // a signal goes to Terraform's whole process group

	mu     sync.Mutex
	fell   time.Time
	final  bool // the runner's SIGKILL was sent
	forced bool // it left without its state
	steps  sync.WaitGroup
}

// newBlow decides the rest of a case.
func (p plan) newBlow(seed uint64) *blow {
	r := random(seed, p.name())
	b := &blow{kind: p.kind, group: r.IntN(2) == 0, hold: time.Duration(r.Int64N(int64(150 * time.Millisecond)))}
	if p.kind == runner {
		// A disk or a backend that is slow, up to one that outlasts the runner.
		b.hold = []time.Duration{0, 0, 2 * time.Second, 8 * time.Second, 11 * time.Second}[r.IntN(5)]
	}
	return b
}

// strike arms a blow at a hit. Terraform is the process that ended tells of.
func (b *blow) strike(l *lane, at hit, terraform *exec.Cmd, ended <-chan struct{}) *strike {
	victim, isKill := victimOf(b.kind)
	s := &strike{point: at.point, nth: at.nth}
	if isKill {
		s.ready = func() bool { return l.find(victim) != 0 }
	}
	s.act = func(hit) string {
		b.mu.Lock()
		b.fell = time.Now()
		b.mu.Unlock()
		running := terraform.Process.Pid
		if b.group {
			running = -running
		}
		switch b.kind {
		case interrupt:
			_ = syscall.Kill(running, syscall.SIGINT)
		case terminate:
			_ = syscall.Kill(running, syscall.SIGTERM)
		case runner:
			b.steps.Go(func() { b.run(running, -terraform.Process.Pid, ended) })
		case killRunning:
			_ = syscall.Kill(terraform.Process.Pid, syscall.SIGKILL)
		case failure:
			return "the suite says so"
		default:
			_ = syscall.Kill(l.find(victim), syscall.SIGKILL)
		}
		time.Sleep(b.hold)
		return ""
	}
	return s
}

// run does what a CI runner does to a job that was cancelled.
func (b *blow) run(pid, group int, ended <-chan struct{}) {
	_ = syscall.Kill(pid, syscall.SIGINT)
	select {
	case <-ended:
		return
	case <-time.After(runnerFirst):
	}
	_ = syscall.Kill(pid, syscall.SIGTERM)
	select {
	case <-ended:
		return
	case <-time.After(runnerThen):
	}
	b.mu.Lock()
	b.final = true
	b.mu.Unlock()
	_ = syscall.Kill(group, syscall.SIGKILL)
}

// interrupted reports whether Terraform was asked to end and did so itself.
func (b *blow) interrupted() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Contains([]string{interrupt, terminate, runner}, b.kind) && !b.final && !b.forced
}

// hear takes note of what Terraform said. Told to end for the second time it
// leaves at once and without its state, which it says; the ledger then has to
// know.
func (b *blow) hear(said string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.forced = strings.Contains(said, "Two interrupts received")
}
