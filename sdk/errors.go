// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package sdk

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// The sentinel errors. Compare with [errors.Is]; each call returns an
// [*Error] of one of these kinds where one fits.
var (
	ErrNotFound        = errors.New("not found")
	ErrExpired         = errors.New("expired")
	ErrConflict        = errors.New("conflict")
	ErrUnsupported     = errors.New("unsupported")
	ErrUnreachable     = errors.New("unreachable")
	ErrUnauthenticated = errors.New("unauthenticated")
	ErrQuota           = errors.New("quota exceeded")
	ErrInvalid         = errors.New("invalid")
	// ErrCrashed is given by the host when the extension's process ended
	// during a call. The call may have acted.
	ErrCrashed = errors.New("extension crashed")
)

// Kinds returns the sentinel errors.
func Kinds() []error {
	return []error{ErrNotFound, ErrExpired, ErrConflict, ErrUnsupported, ErrUnreachable,
		ErrUnauthenticated, ErrQuota, ErrInvalid, ErrCrashed}
}

// Error is an error for the person who reads it: what failed and why, on
// which attribute, and what to do.
type Error struct {
	Kind    error  // one of the sentinel errors
	Message string // what failed, on which object, why
	Path    string // the attribute that is to blame, as in the profile: "limits.memory"
	Advice  string // what to do
	// Lease is the present lease, with [ErrConflict] and [ErrExpired].
	Lease *Lease
	// RetryAfter is the backend's own wish, with [ErrQuota] and
	// [ErrUnreachable]; zero when it named none.
	RetryAfter time.Duration
	// Err is the cause, when there is one.
	Err error
}

// Error returns the message, the attribute and the cause in one line, and
// the advice after it.
func (e *Error) Error() string {
	var b strings.Builder
	if e.Path != "" {
		b.WriteString(e.Path + ": ")
	}
	b.WriteString(e.Message)
	if e.Message == "" {
		b.WriteString(e.Kind.Error())
	}
	if e.Err != nil {
		b.WriteString(": " + e.Err.Error())
	}
	if e.Advice != "" {
		b.WriteString(" (" + e.Advice + ")")
	}
	return b.String()
}

// Unwrap returns the kind and the cause.
func (e *Error) Unwrap() []error {
	if e.Err == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Err}
}

// Errorf returns an [*Error] of a kind.
func Errorf(kind error, format string, args ...any) *Error {
	return &Error{Kind: kind, Message: fmt.Sprintf(format, args...)}
}

// Invalid returns an [ErrInvalid] on an attribute.
func Invalid(path, format string, args ...any) *Error {
	return &Error{Kind: ErrInvalid, Path: path, Message: fmt.Sprintf(format, args...)}
}

// Unsupported returns an [ErrUnsupported] on an attribute.
func Unsupported(path, format string, args ...any) *Error {
	return &Error{Kind: ErrUnsupported, Path: path, Message: fmt.Sprintf(format, args...)}
}

// Conflict returns an [ErrConflict] that carries the present lease.
func Conflict(lease Lease, format string, args ...any) *Error {
	return &Error{Kind: ErrConflict, Message: fmt.Sprintf(format, args...), Lease: &lease}
}

// Expired returns an [ErrExpired] that carries the present lease.
func Expired(lease Lease, format string, args ...any) *Error {
	return &Error{Kind: ErrExpired, Message: fmt.Sprintf(format, args...), Lease: &lease}
}
