// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/plugin/internal/pb"
)

// hostile is an extension that answers what no extension should.
type hostile struct {
	pb.UnimplementedExtensionServer
	sandbox *pb.Sandbox
	exec    []*pb.ExecResponse
	list    []*pb.ListResponse
	err     error
	bytes   int64
	classes map[string]*pb.Guarantee
	found   []*pb.Finding
}

func (h *hostile) Inspect(context.Context, *pb.InspectRequest) (*pb.InspectResponse, error) {
	return &pb.InspectResponse{Findings: h.found}, h.err
}

func (h *hostile) Describe(context.Context, *pb.DescribeRequest) (*pb.DescribeResponse, error) {
	return &pb.DescribeResponse{Name: "fake", Capabilities: h.classes, Abilities: []string{"exec", "copy", "fly"}}, nil
}

func (h *hostile) Get(context.Context, *pb.GetRequest) (*pb.GetResponse, error) {
	return &pb.GetResponse{Sandbox: h.sandbox}, h.err
}

func (h *hostile) Extend(context.Context, *pb.ExtendRequest) (*pb.ExtendResponse, error) {
	return &pb.ExtendResponse{Lease: h.sandbox.GetLease()}, h.err
}

func (h *hostile) List(_ *pb.ListRequest, stream grpc.ServerStreamingServer[pb.ListResponse]) error {
	for _, message := range h.list {
		if err := stream.Send(message); err != nil {
			return err
		}
	}
	return h.err
}

func (h *hostile) Exec(stream grpc.BidiStreamingServer[pb.ExecRequest, pb.ExecResponse]) error {
	for _, message := range h.exec {
		if err := stream.Send(message); err != nil {
			return err
		}
	}
	return h.err
}

func (h *hostile) CopyIn(stream grpc.ClientStreamingServer[pb.CopyInRequest, pb.CopyInResponse]) error {
	return stream.SendAndClose(&pb.CopyInResponse{Bytes: h.bytes})
}

// wellFormed is a sandbox that nothing is wrong with.
func wellFormed() *pb.Sandbox {
	sandbox, err := encodeSandbox(sdk.Sandbox{ID: "sbx-1", Status: sdk.StatusReady, Identity: identity("sbx-1")})
	if err != nil {
		panic(err)
	}
	return sandbox
}

// bounded fails unless an answer was refused, as the extension's fault, with
// a short text and without a kind that a caller would act on.
func bounded(t *testing.T, err error) {
	t.Helper()
	if err == nil {
		t.Error("it was believed")
		return
	}
	if len(err.Error()) > 2*maxText {
		t.Errorf("an error of %d bytes", len(err.Error()))
	}
	if !strings.Contains(err.Error(), "fake") {
		t.Errorf("the error does not name the extension: %v", err)
	}
	for _, kind := range sdk.Kinds() {
		if errors.Is(err, kind) {
			t.Errorf("nonsense became %q: %v", kind, err)
		}
	}
}

func TestNonsenseAnswersAreBoundedErrors(t *testing.T) {
	labels := map[string]string{}
	for i := range maxEntries + 1 {
		labels[fmt.Sprint(i)] = ""
	}
	manyLabels, err := json.Marshal(sdk.Identity{ID: "x", Labels: labels})
	if err != nil {
		t.Fatal(err)
	}
	endpoints := map[string]string{}
	for i := range maxEntries + 1 {
		endpoints[fmt.Sprint(i)] = "x"
	}
	for name, spoil := range map[string]func(*pb.Sandbox){
		"nothing at all":                func(s *pb.Sandbox) { proto.Reset(s) },
		"a time before time":            func(s *pb.Sandbox) { s.CreatedAt = &timestamppb.Timestamp{Seconds: math.MinInt64} },
		"a time after time":             func(s *pb.Sandbox) { s.Lease = &pb.Lease{ExpiresAt: &timestamppb.Timestamp{Seconds: math.MaxInt64}} },
		"too many nanoseconds":          func(s *pb.Sandbox) { s.CreatedAt = &timestamppb.Timestamp{Nanos: -1} },
		"a negative generation":         func(s *pb.Sandbox) { s.Lease = &pb.Lease{Generation: -1} },
		"a negative incarnation":        func(s *pb.Sandbox) { s.Incarnation = math.MinInt64 },
		"a negative sequence":           func(s *pb.Sandbox) { s.Lease = &pb.Lease{Event: &pb.EventRef{Sequence: -1}} },
		"an unknown status":             func(s *pb.Sandbox) { s.Status = strings.Repeat("x", 1<<20) },
		"an identity that is no JSON":   func(s *pb.Sandbox) { s.IdentityJson = []byte("{") },
		"an identity that is not UTF-8": func(s *pb.Sandbox) { s.IdentityJson = []byte("{\"owner\":\"\xff\"}") },
		"an enormous identity":          func(s *pb.Sandbox) { s.IdentityJson = []byte(`{"owner":"` + strings.Repeat("x", maxIdentity) + `"}`) },
		"enormously many labels":        func(s *pb.Sandbox) { s.IdentityJson = manyLabels },
		"a profile of another type":     func(s *pb.Sandbox) { s.ProfileJson = []byte(`[1]`) },
		"enormously many endpoints":     func(s *pb.Sandbox) { s.Endpoints = endpoints },
		"enormously many guards":        func(s *pb.Sandbox) { s.Guards = make([]string, maxEntries+1) },
		"an oversized message":          func(s *pb.Sandbox) { s.Reason = strings.Repeat("x", maxMessage) },
	} {
		t.Run(name, func(t *testing.T) {
			sandbox := wellFormed()
			spoil(sandbox)
			host := dial(t, &hostile{sandbox: sandbox}, nil, ConnectOptions{})
			_, err := host.Get(within(t), sdk.GetOptions{})
			bounded(t, err)
		})
	}
}

func TestNonsenseFindingsAreNotBelieved(t *testing.T) {
	for name, found := range map[string]*pb.Finding{
		"nothing at all":         {},
		"an unknown check":       {Check: "luck", Side: "inside", Verdict: "passed"},
		"an unknown side":        {Check: "mounts", Side: "above", Verdict: "passed"},
		"a side that sees none":  {Check: "metadata", Side: "outside", Verdict: "passed"},
		"an unknown verdict":     {Check: "mounts", Side: "inside", Verdict: "fine"},
		"evidence without bound": {Check: "mounts", Side: "inside", Verdict: "passed", Evidence: make([]string, maxEntries+1)},
	} {
		t.Run(name, func(t *testing.T) {
			host := dial(t, &hostile{found: []*pb.Finding{found}}, nil, ConnectOptions{})
			_, err := host.(sdk.Inspector).Inspect(within(t), sdk.InspectOptions{})
			bounded(t, err)
		})
	}
}

func TestALeaseWithoutADeadlineIsNotGranted(t *testing.T) {
	host := dial(t, &hostile{sandbox: &pb.Sandbox{Lease: &pb.Lease{Generation: 2}}}, nil, ConnectOptions{})
	_, err := host.Extend(within(t), sdk.ExtendOptions{})
	bounded(t, err)
}

func TestAnUnreadableSandboxMakesAListingIncomplete(t *testing.T) {
	broken := wellFormed()
	broken.Id, broken.Incarnation = "sbx-broken", -1
	host := dial(t, &hostile{list: []*pb.ListResponse{
		{Message: &pb.ListResponse_Sandbox{Sandbox: broken}},
		{Message: &pb.ListResponse_Sandbox{Sandbox: wellFormed()}},
		{Message: &pb.ListResponse_End{End: &pb.ListEnd{}}},
	}}, nil, ConnectOptions{})
	result, err := host.List(within(t), sdk.ListOptions{})
	if err != nil || len(result.Sandboxes) != 1 || !strings.Contains(result.Incomplete, "sbx-broken") {
		t.Errorf("%d sandboxes, incomplete %q, %v", len(result.Sandboxes), result.Incomplete, err)
	}
}

func TestAStreamWithoutItsEndIsNotWhole(t *testing.T) {
	host := dial(t, &hostile{
		list: []*pb.ListResponse{{Message: &pb.ListResponse_Sandbox{Sandbox: wellFormed()}}},
		exec: []*pb.ExecResponse{{Message: &pb.ExecResponse_Stdout{Stdout: []byte("x")}}},
	}, nil, ConnectOptions{})
	_, err := host.List(within(t), sdk.ListOptions{})
	bounded(t, err)
	_, err = host.(sdk.Execer).Exec(within(t), sdk.ExecOptions{Command: []string{"x"}})
	bounded(t, err)
}

func TestNonsenseInStreamsIsABoundedError(t *testing.T) {
	for name, message := range map[string]*pb.ExecResponse{
		"a frame that is too large": {Message: &pb.ExecResponse_Stdout{Stdout: make([]byte, chunkSize+1)}},
		"a negative exit code":      {Message: &pb.ExecResponse_End{End: &pb.ExecEnd{ExitCode: -1}}},
		"a message beyond bounds":   {Message: &pb.ExecResponse_Stdout{Stdout: make([]byte, maxMessage+1)}},
	} {
		t.Run(name, func(t *testing.T) {
			host := dial(t, &hostile{exec: []*pb.ExecResponse{message}}, nil, ConnectOptions{})
			_, err := host.(sdk.Execer).Exec(within(t), sdk.ExecOptions{Command: []string{"x"}})
			bounded(t, err)
		})
	}
	host := dial(t, &hostile{bytes: -1}, nil, ConnectOptions{})
	_, err := host.(sdk.Copier).CopyIn(within(t), sdk.CopyInOptions{Archive: strings.NewReader("")})
	bounded(t, err)
}

func TestAListingIsBounded(t *testing.T) {
	var bound listing
	item := &pb.Sandbox{Reason: strings.Repeat("x", maxListing/10)}
	var err error
	for range 11 {
		err = bound.add(item)
	}
	if err == nil {
		t.Error("a listing larger than its bound was taken")
	}
	bound, err = listing{}, nil
	for range maxItems + 1 {
		err = bound.add(&pb.Sandbox{})
	}
	if err == nil {
		t.Error("a listing longer than its bound was taken")
	}
}

func TestUnknownWordsNeverFlatter(t *testing.T) {
	host := dial(t, &hostile{classes: map[string]*pb.Guarantee{
		"exec": {Class: "perfect"}, "feature_of_tomorrow": {Class: "enforced"},
	}}, nil, ConnectOptions{})
	result, err := host.Describe(within(t), sdk.DescribeOptions{})
	if err != nil || result.Capabilities.Of(sdk.FeatureExec).Class != sdk.ClassUnsupported {
		t.Errorf("%+v %v", result.Capabilities, err)
	}
	if have := abilitiesOf(host); have != abilityExec|abilityCopy {
		t.Errorf("abilities %07b", have)
	}
}

func TestHostileErrorsAreBounded(t *testing.T) {
	withDetail := func(f *pb.Failure) error {
		s, err := status.New(codes.Unknown, "x").WithDetails(f)
		if err != nil {
			t.Fatal(err)
		}
		return s.Err()
	}
	kinds := make([]string, 10_000)
	for i := range kinds {
		kinds[i] = "conflict"
	}
	for name, test := range map[string]struct {
		give error
		is   error // nil: no kind at all
	}{
		"no detail":          {status.Error(codes.DataLoss, strings.Repeat("x", 1<<17)), nil},
		"an empty detail":    {withDetail(&pb.Failure{}), nil},
		"an unknown kind":    {withDetail(&pb.Failure{Kinds: []string{"spontaneous"}, Text: "x"}), nil},
		"a thousand kinds":   {withDetail(&pb.Failure{Kinds: kinds, Message: strings.Repeat("x", 1<<18)}), sdk.ErrConflict},
		"a lease from hell":  {withDetail(&pb.Failure{Kinds: []string{"conflict"}, Lease: &pb.Lease{Generation: -1}}), sdk.ErrConflict},
		"a wait for ages":    {withDetail(&pb.Failure{Kinds: []string{"quota"}, RetryAfter: &durationpb.Duration{Seconds: 1 << 33}}), sdk.ErrQuota},
		"a wait backwards":   {withDetail(&pb.Failure{Kinds: []string{"quota"}, RetryAfter: &durationpb.Duration{Seconds: -1}}), sdk.ErrQuota},
		"a method it lacks":  {status.Error(codes.Unimplemented, "unknown method"), sdk.ErrUnsupported},
		"a broken transport": {status.Error(codes.Unavailable, "transport is closing"), sdk.ErrUnreachable},
	} {
		t.Run(name, func(t *testing.T) {
			host := dial(t, &hostile{err: test.give}, nil, ConnectOptions{})
			_, err := host.Get(within(t), sdk.GetOptions{})
			if err == nil || len(err.Error()) > 3*maxText {
				t.Fatalf("an error of %d bytes", len(fmt.Sprint(err)))
			}
			for _, kind := range sdk.Kinds() {
				if errors.Is(err, kind) != (kind == test.is) {
					t.Errorf("errors.Is(err, %q) is %v: %.200v", kind, errors.Is(err, kind), err)
				}
			}
			var known *sdk.Error
			if errors.As(err, &known) && (known.RetryAfter < 0 || known.RetryAfter > maxRetryAfter || (known.Lease != nil && known.Lease.Generation < 0)) {
				t.Errorf("nonsense was handed on: %+v", known)
			}
		})
	}
}
