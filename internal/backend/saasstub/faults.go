// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package saasstub

// The ways in which a vendor lies, between the honest server and its client.

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"
)

// Call names a call of the API.
type Call string

// The calls.
const (
	CallCreateBox   Call = "create_box"
	CallGetBox      Call = "get_box"
	CallListBoxes   Call = "list_boxes"
	CallUpdateBox   Call = "update_box"
	CallDeleteBox   Call = "delete_box"
	CallPauseBox    Call = "pause_box"
	CallResumeBox   Call = "resume_box"
	CallRunCommand  Call = "run_command"
	CallPutFiles    Call = "put_files"
	CallGetFiles    Call = "get_files"
	CallGetLog      Call = "get_log"
	CallCreateImage Call = "create_image"
	CallGetImage    Call = "get_image"
	CallListImages  Call = "list_images"
	CallUpdateImage Call = "update_image"
	CallDeleteImage Call = "delete_image"

	CallDownloadImage Call = "download_image"
	CallUploadImage   Call = "upload_image"
)

// Lie is one way in which a call goes wrong.
type Lie string

// The lies. Where one makes no sense for a call, the call is honest.
const (
	LoseRequest  Lie = "lose_request"  // it never arrives; there is no answer
	LoseAnswer   Lie = "lose_answer"   // it is carried out; there is no answer
	Twice        Lie = "twice"         // it arrives twice; the second answer is given
	Pretend      Lie = "pretend"       // a delete: success, and nothing is done
	NotFound     Lie = "not_found"     // 404 for a thing that is there
	InTransition Lie = "in_transition" // 409, try again
	RateLimited  Lie = "rate_limited"  // 429, with Retry-After when For is set
	Broken       Lie = "broken"        // 503
	Slow         Lie = "slow"          // takes For, by the vendor's clock
	Clamp        Lie = "clamp"         // a create or update: the deadline is For earlier than asked
	DieEarly     Lie = "die_early"     // a create: the box is dead right after
	RepeatPage   Lie = "repeat_page"   // a list: the page before comes again
	DropPage     Lie = "drop_page"     // a list: a page is left out
	StaleList    Lie = "stale_list"    // a list of boxes: as it was when the fault was injected
)

// Fault is one lie, told at a certain occurrence of a call.
type Fault struct {
	Call Call
	Lie  Lie
	On   int // at which call from now, from 1; 0 is at every one
	For  time.Duration
}

// Inject adds faults to those that are in force. The first that fits a call
// is told.
func (s *Server) Inject(injected ...Fault) {
	frozen := s.Boxes()
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	for _, fault := range injected {
		s.faults.armed = append(s.faults.armed, &armed{Fault: fault, frozen: frozen})
	}
}

// InjectRandom makes each call go wrong with a probability, in one of the
// ways given. The same seed and the same calls give the same lies.
func (s *Server) InjectRandom(seed uint64, probability float64, lies ...Lie) {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	s.faults.random, s.faults.probability, s.faults.lies = rand.New(rand.NewPCG(seed, 0)), probability, lies
}

// Heal ends all faults.
func (s *Server) Heal() {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	s.faults.armed, s.faults.lies = nil, nil
}

// Calls returns how often each call was made.
func (s *Server) Calls() map[Call]int {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	counted := map[Call]int{}
	for call, n := range s.faults.calls {
		counted[call] = n
	}
	return counted
}

// armed is a fault that counts the calls that it could be told at.
type armed struct {
	Fault
	seen   int
	frozen []Box
}

// faults is the API with lies. A call that is not overridden here is honest.
type faults struct {
	API
	server *Server

	mu          sync.Mutex
	calls       map[Call]int
	armed       []*armed
	random      *rand.Rand
	probability float64
	lies        []Lie
}

// next decides about one call.
func (f *faults) next(call Call) armed {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.calls == nil {
		f.calls = map[Call]int{}
	}
	f.calls[call]++
	for i, a := range f.armed {
		if a.Call != call {
			continue
		}
		a.seen++
		if a.On == 0 || a.On == a.seen {
			told := *a
			if a.On != 0 {
				f.armed = slices.Delete(f.armed, i, i+1)
			}
			return told
		}
	}
	if len(f.lies) > 0 && f.random.Float64() < f.probability {
		return armed{Fault: Fault{Call: call, Lie: f.lies[f.random.IntN(len(f.lies))]}}
	}
	return armed{}
}

// tell carries a call out, or lies about it.
func tell[T any](ctx context.Context, f *faults, call Call, act func() (T, error)) (T, error) {
	return told(ctx, f, f.next(call), act)
}

func told[T any](ctx context.Context, f *faults, fault armed, act func() (T, error)) (T, error) {
	var nothing T
	switch fault.Lie {
	case LoseRequest:
		return nothing, &APIError{Message: "connection reset"}
	case LoseAnswer:
		_, _ = act()
		return nothing, &APIError{Message: "connection reset"}
	case Twice:
		_, _ = act()
	case NotFound:
		return nothing, &APIError{Status: 404, Code: CodeNotFound, Message: "no such thing"}
	case InTransition:
		return nothing, &APIError{Status: 409, Code: CodeInTransition, Message: "the box is changing its state"}
	case RateLimited:
		return nothing, &APIError{Status: 429, Code: CodeRateLimited, Message: "too many requests", RetryAfter: fault.For}
	case Broken:
		return nothing, &APIError{Status: 503, Code: "unavailable", Message: "try again later"}
	case Slow:
		if err := f.server.options.Clock.Sleep(ctx, fault.For); err != nil {
			return nothing, err
		}
	}
	return act()
}

func (f *faults) CreateBox(ctx context.Context, req CreateBoxRequest) (Box, error) {
	fault := f.next(CallCreateBox)
	if fault.Lie == Clamp {
		req.StopAt = req.StopAt.Add(-fault.For)
	}
	made, err := told(ctx, f, fault, func() (Box, error) { return f.API.CreateBox(ctx, req) })
	if fault.Lie == DieEarly && err == nil {
		err = f.server.Kill(made.ID)
	}
	return made, err
}

func (f *faults) GetBox(ctx context.Context, id string) (Box, error) {
	return tell(ctx, f, CallGetBox, func() (Box, error) { return f.API.GetBox(ctx, id) })
}

func (f *faults) ListBoxes(ctx context.Context, req ListRequest) (Page[Box], error) {
	fault := f.next(CallListBoxes)
	if fault.Lie == StaleList {
		var all []entry[Box]
		for i, b := range fault.frozen {
			if matches(b.Tags, req.Tags) {
				all = append(all, entry[Box]{int64(i + 1), b})
			}
		}
		return paginate(all, req)
	}
	return lyingPage(ctx, f, fault, req, f.API.ListBoxes)
}

// lyingPage repeats or drops a page.
func lyingPage[T any](ctx context.Context, f *faults, fault armed, req ListRequest, list func(context.Context, ListRequest) (Page[T], error)) (Page[T], error) {
	page, err := told(ctx, f, fault, func() (Page[T], error) { return list(ctx, req) })
	switch {
	case err != nil || page.Next == "":
	case fault.Lie == RepeatPage:
		page.Next = req.Cursor
	case fault.Lie == DropPage:
		req.Cursor = page.Next
		return list(ctx, req)
	}
	return page, err
}

func (f *faults) UpdateBox(ctx context.Context, id string, req UpdateRequest) (Box, error) {
	fault := f.next(CallUpdateBox)
	if fault.Lie == Clamp && !req.Until.IsZero() {
		req.Until = req.Until.Add(-fault.For)
	}
	return told(ctx, f, fault, func() (Box, error) { return f.API.UpdateBox(ctx, id, req) })
}

func (f *faults) DeleteBox(ctx context.Context, id string) error {
	return f.delete(ctx, CallDeleteBox, func() error { return f.API.DeleteBox(ctx, id) })
}

func (f *faults) delete(ctx context.Context, call Call, act func() error) error {
	fault := f.next(call)
	if fault.Lie == Pretend {
		return nil
	}
	_, err := told(ctx, f, fault, func() (struct{}, error) { return struct{}{}, act() })
	return err
}

func (f *faults) PauseBox(ctx context.Context, id string) (Box, error) {
	return tell(ctx, f, CallPauseBox, func() (Box, error) { return f.API.PauseBox(ctx, id) })
}

func (f *faults) ResumeBox(ctx context.Context, id string) (Box, error) {
	return tell(ctx, f, CallResumeBox, func() (Box, error) { return f.API.ResumeBox(ctx, id) })
}

func (f *faults) RunCommand(ctx context.Context, id string, req CommandRequest) (CommandResult, error) {
	return tell(ctx, f, CallRunCommand, func() (CommandResult, error) { return f.API.RunCommand(ctx, id, req) })
}

func (f *faults) PutFiles(ctx context.Context, id string, files map[string]BoxFile) error {
	_, err := tell(ctx, f, CallPutFiles, func() (struct{}, error) { return struct{}{}, f.API.PutFiles(ctx, id, files) })
	return err
}

func (f *faults) GetFiles(ctx context.Context, id, path string) (map[string]BoxFile, error) {
	return tell(ctx, f, CallGetFiles, func() (map[string]BoxFile, error) { return f.API.GetFiles(ctx, id, path) })
}

func (f *faults) GetLog(ctx context.Context, id string) ([]byte, error) {
	return tell(ctx, f, CallGetLog, func() ([]byte, error) { return f.API.GetLog(ctx, id) })
}

func (f *faults) CreateImage(ctx context.Context, boxID string, shown Image) (Image, error) {
	return tell(ctx, f, CallCreateImage, func() (Image, error) { return f.API.CreateImage(ctx, boxID, shown) })
}

func (f *faults) GetImage(ctx context.Context, id string) (Image, error) {
	return tell(ctx, f, CallGetImage, func() (Image, error) { return f.API.GetImage(ctx, id) })
}

func (f *faults) ListImages(ctx context.Context, req ListRequest) (Page[Image], error) {
	return lyingPage(ctx, f, f.next(CallListImages), req, f.API.ListImages)
}

func (f *faults) UpdateImage(ctx context.Context, id string, req UpdateRequest) (Image, error) {
	return tell(ctx, f, CallUpdateImage, func() (Image, error) { return f.API.UpdateImage(ctx, id, req) })
}

func (f *faults) DownloadImage(ctx context.Context, id string) (map[string]BoxFile, error) {
	return tell(ctx, f, CallDownloadImage, func() (map[string]BoxFile, error) { return f.API.DownloadImage(ctx, id) })
}

func (f *faults) UploadImage(ctx context.Context, shown Image, files map[string]BoxFile) (Image, error) {
	return tell(ctx, f, CallUploadImage, func() (Image, error) { return f.API.UploadImage(ctx, shown, files) })
}

func (f *faults) DeleteImage(ctx context.Context, id string) error {
	return f.delete(ctx, CallDeleteImage, func() error { return f.API.DeleteImage(ctx, id) })
}
