// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package modaltest

// The ways in which the service goes wrong, between the wire and the calls.

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// The calls that faults are injected into, by the names of their methods. Any
// other method's name does as well.
const (
	CallCreate    = "SandboxCreateV2"
	CallWait      = "SandboxWaitV2"
	CallTerminate = "SandboxTerminateV2"
	CallList      = "SandboxListV2"
	CallListV1    = "SandboxList"
	CallTagsGet   = "SandboxTagsGetV2"
	CallTagsSet   = "SandboxTagsSetV2"
	CallApp       = "AppGetOrCreate"
	CallImage     = "ImageGetOrCreate"
	CallFromName  = "SandboxGetFromNameV2"
	CallTaskID    = "SandboxGetTaskIdV2"
	CallAccess    = "SandboxGetCommandRouterAccess"
	CallExec      = "TaskExecStart"
	CallExecWait  = "TaskExecWait"
	CallRead      = "TaskExecStdioRead"
	CallSnapshot  = "TaskSnapshotFilesystem"
	CallImageByID = "ImageFromId"
	CallImageEnd  = "ImageDelete"
)

// Calls returns the calls of the control plane that an adapter makes about
// sandboxes.
func Calls() []string {
	return []string{
		CallCreate, CallWait, CallTerminate, CallList, CallListV1, CallTagsGet, CallTagsSet, CallApp, CallImage, CallFromName, CallTaskID, CallAccess,
		CallImageByID, CallImageEnd, "SandboxGetFromName", "SandboxWait", "SandboxTerminate", "SandboxTagsGet", "SandboxTagsSet", "SandboxGetTunnelsV2", "TokenInfoGet",
	}
}

// Lie is one way in which a call goes wrong.
type Lie string

// The lies. Where one makes no sense for a call, the call is honest.
const (
	LoseRequest Lie = "lose_request" // it is not carried out: Unavailable
	LoseAnswer  Lie = "lose_answer"  // it is carried out; Unavailable
	Refuse      Lie = "refuse"       // Code, and nothing is done
	NotFound    Lie = "not_found"    // for what is there
	Throttle    Lie = "throttle"     // ResourceExhausted; with For it says when to ask again, which clients obey
	Slow        Lie = "slow"         // the answer takes For longer, by the service's clock
	Pretend     Lie = "pretend"      // a terminate: OK, and nothing is done
	Clamp       Lie = "clamp"        // a create: the lifetime is For shorter than asked
	DieEarly    Lie = "die_early"    // a create: dead right after
	NoAccess    Lie = "no_access"    // a create: the answer lacks task and router
	TieTimes    Lie = "tie_times"    // a create: the time of the one before
	JoinBuild   Lie = "join_build"   // an image: the client has to wait for its build
	RepeatPage  Lie = "repeat_page"  // a list: the first page, whatever is asked for, without end
	DropPage    Lie = "drop_page"    // a list: an empty page in place of a later one
	SkipPage    Lie = "skip_page"    // a list: the page after the one that was due
	StaleList   Lie = "stale_list"   // a list: nothing that was made after the fault
	NoTags      Lie = "no_tags"      // a list: without tags
	TooLong     Lie = "too_long"     // a list: DeadlineExceeded
	CutStream   Lie = "cut_stream"   // an output: it ends after three bytes
	NoImage     Lie = "no_image"     // a snapshot: the answer lacks the image
	Echo        Lie = "echo"         // it is refused in a text that holds the token
	Edit        Lie = "edit"         // the answer lacks Clear and has Merge
)

// Fault is one lie, told at a certain occurrence of a call.
type Fault struct {
	Call string // the name of a method
	Lie  Lie
	On   int // at which call from now, from 1; 0 is at every one
	For  time.Duration
	Code codes.Code // of Refuse
	// Clear names fields of the answer, and Merge is one in the JSON of protobuf,
	// of Edit.
	Clear []string
	Merge string
}

// Inject adds faults to those that are in force. The first that fits a call is
// told.
func (s *Server) Inject(injected ...Fault) {
	s.mu.Lock()
	since := s.last
	s.mu.Unlock()
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	for _, fault := range injected {
		s.faults.armed = append(s.faults.armed, &armed{Fault: fault, since: since})
	}
}

// Heal ends all faults.
func (s *Server) Heal() {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	s.faults.armed = nil
}

// armed is a fault that counts the calls that it could be told at.
type armed struct {
	Fault
	seen  int
	since time.Time // the last create before it
}

type faults struct {
	server *Server
	mu     sync.Mutex
	armed  []*armed
}

// next decides about one call.
func (f *faults) next(call string) (armed, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, a := range f.armed {
		if a.Call != call {
			continue
		}
		a.seen++
		if a.On == 0 || a.On == a.seen {
			if a.On != 0 {
				f.armed = slices.Delete(f.armed, i, i+1)
			}
			return *a, true
		}
	}
	return armed{}, false
}

type faultKey struct{}

// of returns the fault that the interceptor has found for a call.
func (f *faults) of(ctx context.Context) (armed, bool) {
	fault, ok := ctx.Value(faultKey{}).(armed)
	return fault, ok
}

// told reports whether a call is to go wrong in one way.
func (f *faults) told(ctx context.Context, lie Lie) bool {
	fault, ok := f.of(ctx)
	return ok && fault.Lie == lie
}

var errLost = status.Error(codes.Unavailable, "connection reset by peer")

// before tells the lies that keep a call from being carried out.
func (f *faults) before(ctx context.Context, fault armed) error {
	switch fault.Lie {
	case Echo:
		md, _ := metadata.FromIncomingContext(ctx)
		return status.Errorf(codes.InvalidArgument, "bad request: %v %v", md.Get("x-modal-token-id"), md.Get("x-modal-token-secret"))
	case LoseRequest:
		return errLost
	case Refuse:
		return status.Error(fault.Code, "a fault that was asked for")
	case NotFound:
		return status.Error(codes.NotFound, "it does not exist")
	case Throttle:
		st := status.New(codes.ResourceExhausted, "too many requests")
		if fault.For > 0 {
			if detailed, err := st.WithDetails(pb.RPCRetryPolicy_builder{RetryAfterSecs: float32(fault.For.Seconds())}.Build()); err == nil {
				st = detailed
			}
		}
		return st.Err()
	}
	return nil
}

func (f *faults) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	fault, lies := f.next(short(info.FullMethod))
	if !lies {
		return handler(ctx, req)
	}
	if err := f.before(ctx, fault); err != nil {
		return nil, err
	}
	if create, ok := req.(*pb.SandboxCreateV2Request); ok && fault.Lie == Clamp {
		d := create.GetDefinition()
		d.SetTimeoutSecs(d.GetTimeoutSecs() - uint32(fault.For.Seconds()))
	}
	// A client that gives up does not stop what it has asked for.
	inner := context.WithValue(ctx, faultKey{}, fault)
	if fault.Lie == LoseAnswer {
		inner = context.WithoutCancel(inner)
	}
	answer, err := handler(inner, req)
	switch {
	case fault.Lie == LoseAnswer:
		return nil, errLost
	case fault.Lie == Slow:
		f.server.pause(ctx, fault.For)
	case fault.Lie == Edit && err == nil:
		return edit(answer, fault.Fault)
	case fault.Lie == DieEarly && err == nil:
		if made, ok := answer.(*pb.SandboxCreateV2Response); ok {
			_ = f.server.Kill(made.GetSandboxId()) // it was made right now
		}
	}
	return answer, err
}

// edit changes an answer.
func edit(answer any, fault Fault) (any, error) {
	message, ok := answer.(proto.Message)
	if !ok {
		return answer, nil
	}
	changed := proto.Clone(message)
	for _, name := range fault.Clear {
		if field := changed.ProtoReflect().Descriptor().Fields().ByName(protoreflect.Name(name)); field != nil {
			changed.ProtoReflect().Clear(field)
		}
	}
	if fault.Merge == "" {
		return changed, nil
	}
	more := changed.ProtoReflect().New().Interface()
	if err := protojson.Unmarshal([]byte(fault.Merge), more); err != nil {
		return nil, status.Errorf(codes.Internal, "the fault can't be told: %s", err)
	}
	proto.Merge(changed, more)
	return changed, nil
}

// faulty is a stream whose context carries a fault.
type faulty struct {
	grpc.ServerStream
	ctx context.Context
}

func (s faulty) Context() context.Context { return s.ctx }

func (f *faults) stream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
	fault, lies := f.next(short(info.FullMethod))
	if !lies {
		return handler(srv, stream)
	}
	if err := f.before(stream.Context(), fault); err != nil {
		return err
	}
	return handler(srv, faulty{stream, context.WithValue(stream.Context(), faultKey{}, fault)})
}

// RouterDown makes every call of the router fail, until Heal.
func (s *Server) RouterDown() {
	var down []Fault
	for _, method := range pb.TaskCommandRouter_ServiceDesc.Methods {
		down = append(down, Fault{Call: method.MethodName, Lie: LoseRequest})
	}
	for _, method := range pb.TaskCommandRouter_ServiceDesc.Streams {
		down = append(down, Fault{Call: method.StreamName, Lie: LoseRequest})
	}
	// One name is that of a call of the control plane, too.
	s.Inject(slices.DeleteFunc(down, func(f Fault) bool { return strings.HasPrefix(f.Call, "SandboxWait") })...)
}
