// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package saasstub

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/clock"
)

// ServerOptions are the options of [NewServer].
type ServerOptions struct {
	Clock clock.Clock // the vendor's; default the system's
	// File keeps the store, for several processes; empty keeps it in memory.
	// Secrets never go into it. Unix only.
	File string
	// StartDelay is how long a new box is starting.
	StartDelay time.Duration
}

// Server plays the vendor. It is safe for concurrent use and serves any
// number of extensions.
type Server struct {
	options ServerOptions
	faults  faults

	mu    sync.Mutex
	state *state
	// secrets of boxes by box id; never stored.
	secrets map[string]map[string]string
}

// state is the store.
type state struct {
	Boxes  map[string]*box   `json:"boxes"`
	Names  map[string]string `json:"names"` // of boxes, to their ids
	Images map[string]*image `json:"images"`
	Next   int64             `json:"next"` // number of the next box or image
}

// box is a box with what the API does not show.
type box struct {
	Box
	Number  int64              `json:"number"`
	ReadyAt time.Time          `json:"ready_at"`
	Env     map[string]string  `json:"env"`
	Workdir string             `json:"workdir"`
	Files   map[string]BoxFile `json:"files"`
	mainProcess
}

type image struct {
	Image
	Number int64              `json:"number"`
	Env    map[string]string  `json:"env"`
	Files  map[string]BoxFile `json:"files"`
}

// NewServer returns a server without boxes, or with those in its file.
func NewServer(options ServerOptions) *Server {
	if options.Clock == nil {
		options.Clock = clock.System{}
	}
	s := &Server{options: options, state: newState(), secrets: map[string]map[string]string{}}
	s.faults.API, s.faults.server = honest{s}, s
	return s
}

func newState() *state {
	return &state{Boxes: map[string]*box{}, Names: map[string]string{}, Images: map[string]*image{}, Next: 1}
}

// do runs one call on the store. What act changes is kept when it succeeds.
func (s *Server) do(ctx context.Context, act func(st *state, now time.Time) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	run := func() error {
		return act(s.state, s.options.Clock.Now().UTC())
	}
	if s.options.File == "" {
		return run()
	}
	return s.withFile(ctx, run)
}

// settleAll lets every box become what it has become by now.
func (s *Server) settleAll(now time.Time) {
	for _, b := range s.state.Boxes {
		s.settle(b, now)
	}
}

// settle lets a box become what it has become by now.
func (s *Server) settle(b *box, now time.Time) {
	if b.State == Starting && !now.Before(b.ReadyAt) {
		b.State, b.RanAt = Running, b.ReadyAt
		b.Version++
	}
	at, why := b.stops()
	b.run(b.State == Running, now, at)
	// A box that is paused stays, until it is deleted, when that is what was
	// asked for: nobody pays for it.
	if b.State == Stopped || now.Before(at) || (b.State == Paused && b.OnStop == "pause") {
		return
	}
	switch b.OnStop {
	case "pause":
		b.State, b.StateReason, b.PausedAt = Paused, why, at
		b.Version++
		return
	case "snapshot":
		b.StoppedInto = s.capture(b, at, Image{Name: "stop-of-" + b.Name, Tags: maps.Clone(b.Tags), DeleteAt: at.Add(cmp.Or(b.KeepImage, 7*24*time.Hour))}).ID
	}
	s.stop(b, why)
}

// stops returns when the box stops as things stand, and why.
func (b *box) stops() (time.Time, string) {
	if idle := b.UsedAt.Add(b.IdleStop); b.IdleStop > 0 && b.State == Running && idle.Before(b.StopAt) {
		return idle, StopIdle
	}
	return b.StopAt, StopTimeout
}

// use notes that the box is used.
func (b *box) use(now time.Time) { b.UsedAt = now }

func (s *Server) stop(b *box, reason string) {
	b.State, b.StateReason, b.Files, b.Coming = Stopped, reason, nil, nil
	b.Version++
	delete(s.secrets, b.ID)
}

// Kill ends a box as a fault of the vendor would: early, and not by us.
func (s *Server) Kill(id string) error {
	return s.do(context.Background(), func(st *state, now time.Time) error {
		b, err := st.box(id)
		if err == nil {
			b.run(b.State == Running, now, b.StopAt)
			s.stop(b, StopDied)
		}
		return err
	})
}

// Boxes returns every box of the account as it truly is, oldest first.
func (s *Server) Boxes() []Box {
	var found []Box
	_ = s.do(context.Background(), func(st *state, now time.Time) error {
		s.settleAll(now)
		for _, b := range slices.SortedFunc(maps.Values(st.Boxes), byNumber) {
			found = append(found, b.clone())
		}
		return nil
	})
	return found
}

func byNumber(a, b *box) int { return cmp.Compare(a.Number, b.Number) }

func (st *state) box(id string) (*box, error) {
	if b, ok := st.Boxes[id]; ok {
		return b, nil
	}
	return nil, &APIError{Status: 404, Code: CodeNotFound, Message: fmt.Sprintf("no box %.40q", id)}
}

// honest is the API without faults.
type honest struct{ *Server }

func (s honest) CreateBox(ctx context.Context, req CreateBoxRequest) (made Box, err error) {
	err = s.do(ctx, func(st *state, now time.Time) error {
		if id, taken := st.Names[req.Name]; taken {
			return &APIError{Status: 409, Code: CodeNameTaken, Message: fmt.Sprintf("box %s has the name %s", id, req.Name)}
		}
		if !req.StopAt.After(now) {
			return &APIError{Status: 422, Code: "stop_at", Message: "stop_at has passed"}
		}
		b := &box{
			Box: Box{
				ID: "box_" + strconv.FormatInt(st.Next, 36), Name: req.Name, Tags: maps.Clone(req.Tags), State: Starting,
				CreatedAt: now, OnStop: req.OnStop, Runs: 1, Version: 1,
				IdleStop: req.IdleStop, KeepImage: req.KeepImage, UsedAt: now.Add(s.options.StartDelay),
			},
			Number: st.Next, ReadyAt: now.Add(s.options.StartDelay), Env: map[string]string{}, Files: map[string]BoxFile{}, Workdir: cmp.Or(req.Workdir, "/"),
		}
		if req.FromID != "" {
			from, err := st.image(req.FromID)
			if err != nil {
				return err
			}
			maps.Copy(b.Env, from.Env)
			maps.Copy(b.Files, from.Files)
		}
		maps.Copy(b.Env, req.Env)
		maps.Copy(b.Files, req.Files)
		for name := range req.Secrets {
			b.Env[name+"_FILE"] = secretsDir + name
		}
		st.Next++
		st.Boxes[b.ID], st.Names[b.Name] = b, b.ID
		s.secrets[b.ID] = maps.Clone(req.Secrets)
		if req.MaxLife > 0 {
			b.StopBy = now.Add(req.MaxLife).Round(0)
		}
		b.stopAt(req.StopAt)
		b.runMain(req.Command)
		s.settle(b, now)
		made = b.clone()
		made.ServerTime = now
		return nil
	})
	return made, err
}

func (s honest) GetBox(ctx context.Context, id string) (Box, error) {
	return s.change(ctx, id, func(*box, time.Time) error { return nil })
}

// change runs act on a box and returns it as it then is.
func (s honest) change(ctx context.Context, id string, act func(b *box, now time.Time) error) (after Box, err error) {
	err = s.do(ctx, func(st *state, now time.Time) error {
		b, err := st.box(id)
		if err != nil {
			return err
		}
		s.settle(b, now)
		if err := act(b, now); err != nil {
			return err
		}
		s.settle(b, now)
		after = b.clone()
		after.ServerTime = now
		return nil
	})
	return after, err
}

func (s honest) ListBoxes(ctx context.Context, req ListRequest) (page Page[Box], err error) {
	err = s.do(ctx, func(st *state, now time.Time) error {
		var all []entry[Box]
		for _, b := range st.Boxes {
			if matches(b.Tags, req.Tags) {
				s.settle(b, now)
				all = append(all, entry[Box]{b.Number, b.Box})
			}
		}
		page, err = paginate(all, req)
		for i := range page.Items {
			page.Items[i] = page.Items[i].clone()
			page.Items[i].ServerTime = now
		}
		return err
	})
	return page, err
}

// entry is a thing in a listing with its place in the order of creation.
type entry[T any] struct {
	number int64
	item   T
}

// paginate cuts one page out. The cursor is the number of the last thing on
// the page before, so what comes and goes between two pages moves nothing.
func paginate[T any](all []entry[T], req ListRequest) (Page[T], error) {
	page := Page[T]{Total: len(all)}
	after := int64(0)
	if req.Cursor != "" {
		var err error
		if after, err = strconv.ParseInt(strings.TrimPrefix(req.Cursor, "after-"), 10, 64); err != nil {
			return page, &APIError{Status: 400, Code: "cursor", Message: "not a cursor"}
		}
	}
	all = slices.DeleteFunc(all, func(e entry[T]) bool { return e.number <= after })
	slices.SortFunc(all, func(a, b entry[T]) int { return cmp.Compare(a.number, b.number) })
	if limit := cmp.Or(req.Limit, 100); len(all) > limit {
		all = all[:limit]
		page.Next = fmt.Sprintf("after-%d", all[limit-1].number)
	}
	for _, e := range all {
		page.Items = append(page.Items, e.item)
	}
	return page, nil
}

func matches(tags, want map[string]string) bool {
	for key, value := range want {
		if tags[key] != value {
			return false
		}
	}
	return true
}

func (s honest) UpdateBox(ctx context.Context, id string, req UpdateRequest) (Box, error) {
	return s.change(ctx, id, func(b *box, _ time.Time) error {
		if b.Version != req.IfVersion {
			return &APIError{Status: 409, Code: CodeVersion, Message: fmt.Sprintf("version %d is not %d", b.Version, req.IfVersion)}
		}
		if !req.Until.IsZero() {
			if b.State == Stopped {
				return &APIError{Status: 409, Code: CodeWrongState, Message: "the box is stopped"}
			}
			b.stopAt(req.Until)
		}
		maps.Copy(b.Tags, req.Tags)
		b.Version++
		return nil
	})
}

// stopAt sets the deadline, within the bound of the box's life.
func (b *box) stopAt(until time.Time) {
	b.StopAt = until.UTC()
	if !b.StopBy.IsZero() && b.StopAt.After(b.StopBy) {
		b.StopAt = b.StopBy
	}
}

func (s honest) DeleteBox(ctx context.Context, id string) error {
	return s.do(ctx, func(st *state, now time.Time) error {
		b, err := st.box(id)
		if err != nil {
			return err
		}
		s.settle(b, now) // an expiry snapshot that is due is still made
		delete(st.Boxes, id)
		delete(st.Names, b.Name)
		delete(s.secrets, id)
		return nil
	})
}

func (s honest) PauseBox(ctx context.Context, id string) (Box, error) {
	return s.change(ctx, id, func(b *box, _ time.Time) error { return b.move(Running, Paused) })
}

func (s honest) ResumeBox(ctx context.Context, id string) (Box, error) {
	return s.change(ctx, id, func(b *box, now time.Time) error {
		if !now.Before(b.StopAt) {
			return &APIError{Status: 409, Code: CodeWrongState, Message: "the box is past its deadline"}
		}
		b.use(now)
		return b.move(Paused, Running)
	})
}

func (b *box) move(from, to State) error {
	switch b.State {
	case to:
		return nil
	case from:
		b.State, b.StateReason, b.PausedAt = to, "", time.Time{}
		b.Version++
		return nil
	}
	return &APIError{Status: 409, Code: CodeWrongState, Message: fmt.Sprintf("the box is %s", b.State)}
}
