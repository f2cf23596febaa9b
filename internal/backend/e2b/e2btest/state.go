// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package e2btest

// A sandbox and its states.

import (
	"maps"
	"net/http"
	"time"
)

// state is the state of the running half of a sandbox.
type state string

const (
	none         state = ""
	running      state = "running"
	pausing      state = "pausing"
	snapshotting state = "snapshotting"
	killing      state = "killing"
)

// machine is a sandbox. Its running half and its stored image come and go on
// their own: whoever has neither does not exist.
type machine struct {
	id       string
	template *template // that it was made from; its base for what it shows
	meta     map[string]string
	env      map[string]string // held by envd: a cold boot loses it
	network  *network
	internet *bool
	secure   bool
	volumes  []volumeMount

	autoPause, autoPauseMemory, autoResume bool
	timeout                                time.Duration // as it was asked for

	state   state
	settled chan struct{} // of a transition; closed at its end
	started time.Time
	ends    time.Time // of the running half; when paused, when that was
	lagging time.Time // until when the edge does not know it

	stored *image // nil while nothing is stored
	frozen bool   // paused with its processes, which are stopped
	root   *root
}

// image is files that are kept, and what the memory beside them held.
type image struct {
	dir string
	env map[string]string
}

func (m *machine) exists() bool { return m.state != none || m.stored != nil }
func (m *machine) live() bool   { return m.state != none }

// shown is the state that GET and listings give. ok is false for what they do
// not find.
func (m *machine) shown() (shown string, ok bool) {
	switch m.state {
	case running, snapshotting:
		return "running", true
	case pausing:
		return "paused", true
	case killing:
		return "", false
	}
	return "paused", m.stored != nil
}

// allowed are the transitions that a running half can make.
func allowed(from, to state) bool {
	switch from {
	case running:
		return to == pausing || to == killing || to == snapshotting
	case pausing:
		return to == killing
	case snapshotting:
		return to == pausing || to == killing
	}
	return false
}

// enter begins a transition. The caller holds the lock, which is let go while
// one under way is waited for. joined is true when that was the same one:
// there is nothing left to do. Not live any more is a problem only for who
// asked, so m.state is none then.
func (s *Server) enter(m *machine, to state) (joined bool, p *problem) {
	for {
		switch {
		case m.state == none:
			return false, nil
		case m.state == to:
			s.wait(m)
			return true, nil
		case m.state == running:
			m.state, m.settled = to, make(chan struct{})
			if to == pausing || to == killing {
				m.ends = s.now()
			}
			return false, nil
		case !allowed(m.state, to):
			return false, fail(http.StatusConflict, "sandbox %q is %s", m.id, m.state)
		}
		s.wait(m)
	}
}

// wait waits for the end of the transition under way, without the lock.
func (s *Server) wait(m *machine) {
	settled := m.settled
	s.mu.Unlock()
	select {
	case <-settled:
	case <-s.life.Done():
	}
	s.mu.Lock()
}

// settle ends a transition. The caller holds the lock.
func (m *machine) settle(to state) {
	m.state = to
	close(m.settled)
}

// evict ends whatever is past its time.
func (s *Server) evict() {
	s.mu.Lock()
	var due []func()
	var ending []<-chan struct{} // by another call
	now := s.now()
	for _, m := range s.machines {
		if m.state == pausing || m.state == killing {
			ending = append(ending, m.settled)
		}
		if m.state != running || now.Before(m.ends) {
			continue
		}
		if m.autoPause {
			_, _ = s.enter(m, pausing)
			due = append(due, func() { s.finishPause(m, m.autoPauseMemory) })
			continue
		}
		_, _ = s.enter(m, killing)
		due = append(due, func() { s.finishKill(m) })
	}
	s.mu.Unlock()
	if s.options.PauseTakes+s.options.KillTakes > 0 {
		for _, finish := range due {
			s.running.Go(finish)
		}
		return
	}
	// Where an end takes no time nobody sees it half done.
	for _, finish := range due {
		finish()
	}
	for _, settled := range ending {
		select {
		case <-settled:
		case <-s.life.Done():
		}
	}
}

// finishKill ends the running half. What is stored stays: a sandbox that was
// ever resumed, snapshotted or forked shows as paused from now on.
func (s *Server) finishKill(m *machine) {
	s.pause(s.options.KillTakes)
	m.root.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	m.settle(none)
	m.frozen = false
	if m.stored == nil {
		delete(s.machines, m.id)
	}
}

// finishPause stores the running half and ends it.
func (s *Server) finishPause(m *machine, memory bool) {
	s.pause(s.options.PauseTakes)
	stored, err := s.capture(m)
	if !memory {
		m.root.KillAll()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		m.stored = stored
		if !memory {
			m.stored.env = nil
		}
	}
	m.frozen = memory
	m.settle(none)
	if m.stored == nil {
		delete(s.machines, m.id)
	}
}

// capture copies the files of a sandbox. Its processes stand still meanwhile;
// those of a sandbox that is paused stay so.
func (s *Server) capture(m *machine) (*image, error) {
	dir, err := s.imageDir()
	if err != nil {
		return nil, err
	}
	m.root.Freeze()
	if err := m.root.CopyTo(dir); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return &image{dir: dir, env: maps.Clone(m.env)}, nil
}

// resume makes a stored sandbox run again. The caller holds the lock and has
// seen that it is paused.
func (s *Server) resume(m *machine, timeout time.Duration, memory bool) *problem {
	if p := s.room(1); p != nil {
		return p
	}
	if timeout > s.options.MaxRun {
		return fail(http.StatusBadRequest, "timeout can't be greater than %g hours", s.options.MaxRun.Hours())
	}
	now := s.now()
	m.state, m.started, m.ends = running, now, now.Add(timeout)
	m.lagging = now.Add(s.options.EdgeLag)
	switch {
	case m.frozen && memory:
		m.root.Thaw()
	default:
		// A cold boot, or what was running is no longer there.
		old := m.root
		m.root = s.newRoot(m.id, m.stored.dir)
		m.env = nil
		if memory {
			m.env = maps.Clone(m.stored.env)
		}
		s.running.Go(old.Close)
	}
	m.frozen = false
	return nil
}

// room tells whether so many more may run. The caller holds the lock.
func (s *Server) room(more int) *problem {
	count := 0
	for _, m := range s.machines {
		if m.live() {
			count++
		}
	}
	if count+more > s.options.Concurrent {
		return fail(http.StatusTooManyRequests, "the team has %d of at most %d concurrent sandboxes", count, s.options.Concurrent)
	}
	return nil
}

// lookup returns a sandbox that a caller may ask about. The caller holds the
// lock.
func (s *Server) lookup(id string) (*machine, *problem) {
	m := s.machines[id]
	if m == nil || !m.exists() {
		return nil, notFound(id)
	}
	return m, nil
}
