// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk/plugin/internal/pb"
)

// kinds are the errors that keep their meaning on the wire: the sentinel
// errors of package sdk, then the two ends of a context.
var kinds = []struct {
	err  error
	name string
	code codes.Code // for readers that know gRPC and not this protocol
}{
	{sdk.ErrNotFound, "not_found", codes.NotFound},
	{sdk.ErrExpired, "expired", codes.FailedPrecondition},
	{sdk.ErrConflict, "conflict", codes.Aborted},
	{sdk.ErrUnsupported, "unsupported", codes.Unimplemented},
	{sdk.ErrUnreachable, "unreachable", codes.Unavailable},
	{sdk.ErrUnauthenticated, "unauthenticated", codes.Unauthenticated},
	{sdk.ErrQuota, "quota", codes.ResourceExhausted},
	{sdk.ErrInvalid, "invalid", codes.InvalidArgument},
	{sdk.ErrCrashed, "crashed", codes.Internal},
	{context.Canceled, "canceled", codes.Canceled},
	{context.DeadlineExceeded, "deadline_exceeded", codes.DeadlineExceeded},
}

// encodeFailure returns an error as a message. It loses nothing that a caller
// can ask of the error: its kinds, what an [*sdk.Error] in it says, its text.
func encodeFailure(err error) *pb.Failure {
	failure := new(pb.Failure)
	var known *sdk.Error
	if errors.As(err, &known) {
		for _, kind := range kinds {
			if errors.Is(known.Kind, kind.err) {
				failure.Kinds = append(failure.Kinds, kind.name)
			}
		}
		failure.Message, failure.Path, failure.Advice = encodeText(known.Message), encodeText(known.Path), encodeText(known.Advice)
		failure.RetryAfter = encodeDuration(known.RetryAfter)
		if known.Err != nil {
			failure.Cause = encodeText(known.Err.Error())
		}
		if known.Lease != nil {
			failure.Lease = encodeLease(*known.Lease)
		}
	}
	for _, kind := range kinds {
		if (known == nil || !errors.Is(known.Kind, kind.err)) && errors.Is(err, kind.err) {
			failure.Kinds = append(failure.Kinds, kind.name)
		}
	}
	if known == nil || known.Error() != err.Error() {
		failure.Text = encodeText(err.Error())
	}
	return failure
}

// statusOf returns an error as the status that ends a call.
func statusOf(err error) error {
	if err == nil {
		return nil
	}
	failure, code := encodeFailure(err), codes.Unknown
	for _, kind := range kinds {
		if len(failure.Kinds) > 0 && failure.Kinds[0] == kind.name {
			code = kind.code
		}
	}
	text := []rune(encodeText(err.Error()))
	// The message repeats what the detail says, for people with other tools.
	s, detailErr := status.New(code, string(text[:min(len(text), 512)])).WithDetails(failure)
	if detailErr != nil {
		return status.Error(code, string(text[:min(len(text), 512)]))
	}
	return s.Err()
}

// failureOf returns the failure that a status carries, or nil.
func failureOf(s *status.Status) *pb.Failure {
	for _, detail := range s.Details() {
		if failure, ok := detail.(*pb.Failure); ok {
			return failure
		}
	}
	return nil
}

// decodeFailure is the inverse of encodeFailure. Where the failure names a
// sentinel error, the result is or wraps an [*sdk.Error].
func decodeFailure(f *pb.Failure) error {
	var is []error
	for _, name := range f.GetKinds()[:min(len(f.GetKinds()), len(kinds))] {
		for _, kind := range kinds {
			if kind.name == name {
				is = append(is, kind.err)
			}
		}
	}
	d := new(decoder)
	var lease *sdk.Lease
	if f.GetLease() != nil {
		l := d.lease(f.GetLease())
		lease = &l
	}
	if d.err != nil {
		// A lease that can't be is no reason to lose the error.
		lease = nil
	}
	retry := (&decoder{}).duration("retry_after", f.GetRetryAfter())
	out := &remoteError{text: cut(f.GetText()), also: is}
	if len(is) > 0 && !errors.Is(is[0], context.Canceled) && !errors.Is(is[0], context.DeadlineExceeded) {
		out.known = &sdk.Error{
			Kind: is[0], Message: cut(f.GetMessage()), Path: cut(f.GetPath()), Advice: cut(f.GetAdvice()), Lease: lease,
			RetryAfter: min(retry, maxRetryAfter),
		}
		out.also = is[1:]
		if f.GetCause() != "" {
			out.known.Err = errors.New(cut(f.GetCause()))
		}
		if out.text == "" && len(out.also) == 0 {
			return out.known
		}
	}
	return out
}

// remoteError is an error of the other side that is more than an [*sdk.Error]:
// one wrapped in a text, one of several kinds or of none.
type remoteError struct {
	text  string
	known *sdk.Error // nil when the error is of no sentinel kind
	also  []error    // what else errors.Is has to find
}

// Error returns the text that the error had on the other side.
func (e *remoteError) Error() string {
	switch {
	case e.text != "":
		return e.text
	case e.known != nil:
		return e.known.Error()
	default:
		return "the extension failed without saying why"
	}
}

// Unwrap returns the kinds.
func (e *remoteError) Unwrap() []error {
	if e.known == nil {
		return e.also
	}
	return append([]error{e.known}, e.also...)
}

// nonsense is the error for an answer that can't be. It has no kind: the call
// may have acted, and nothing is known about its object.
func nonsense(name, call string, err error) error {
	return fmt.Errorf("extension %s gave an answer to %s that can't be used: %w", name, call, err)
}
