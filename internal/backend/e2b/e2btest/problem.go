// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package e2btest

// Errors as the service words them, and reading a request's body.

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"mime"
	"net/http"
	"strconv"
)

// problem is an answer that is no success.
type problem struct {
	status     int
	code       string // error_code
	message    string
	retryAfter int // seconds; 0 is no header
}

func (p *problem) Error() string { return fmt.Sprintf("%d: %s", p.status, p.message) }

func fail(status int, format string, args ...any) *problem {
	return &problem{status: status, message: fmt.Sprintf(format, args...)}
}

// refused is what the validator in front of the handlers answers.
func refused(format string, args ...any) *problem {
	return fail(http.StatusBadRequest, "validation error: "+format, args...)
}

func notFound(id string) *problem {
	return fail(http.StatusNotFound, "sandbox %q does not exist", id)
}

// write sends it.
func (p *problem) write(w http.ResponseWriter) {
	body := map[string]any{"code": p.status, "message": p.message}
	if p.code != "" {
		body["error_code"] = p.code
	}
	if p.retryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(p.retryAfter))
		w.Header().Set("RateLimit-Limit", "5")
		w.Header().Set("RateLimit-Remaining", "0")
		w.Header().Set("RateLimit-Reset", strconv.Itoa(p.retryAfter))
	}
	writeJSON(w, p.status, body)
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	encoded, err := json.Marshal(body)
	if err != nil {
		panic(err) // the types of this package always encode
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(encoded) // the client may have gone
}

// maxBody is the service's own bound.
const maxBody = 16 << 20

// object is a JSON object whose fields are read one by one, as a schema says.
type object map[string]json.RawMessage

// body reads a request's body as the validator does. An absent one is nil
// where it is optional.
func (r *request) object(required bool) (object, *problem) {
	if len(r.body) == 0 {
		if required {
			return nil, refused("a body is required")
		}
		return object{}, nil
	}
	kind, _, err := mime.ParseMediaType(r.http.Header.Get("Content-Type"))
	if err != nil || kind != "application/json" {
		return nil, refused("unexpected content type %q", r.http.Header.Get("Content-Type"))
	}
	var o object
	if err := json.Unmarshal(r.body, &o); err != nil || o == nil {
		return nil, refused("the body is no JSON object")
	}
	return o, nil
}

func (o object) has(name string) bool { _, ok := o[name]; return ok }

// read decodes a field of a type; a field that is not there leaves the value.
func read[T any](o object, name string, into *T) *problem {
	raw, ok := o[name]
	if !ok {
		return nil
	}
	if bytes.Equal(bytes.TrimSpace(raw), []byte("null")) {
		return refused("property %q is not nullable", name)
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return refused("property %q has the wrong type", name)
	}
	return nil
}

// number reads a whole number between two bounds.
func number(o object, name string, into *int64, least, most int64) *problem {
	if p := read(o, name, into); p != nil {
		return p
	}
	if *into < least || *into > most {
		return refused("property %q must be between %d and %d", name, least, most)
	}
	return nil
}

// readTimeout reads the time to live, in seconds.
func readTimeout(o object, into *int64) *problem {
	return number(o, "timeout", into, 0, math.MaxInt32)
}

// texts reads a map of strings; a value of another type is refused.
func texts(o object, name string, into *map[string]string) *problem {
	var found map[string]*string
	if p := read(o, name, &found); p != nil {
		return p
	}
	if found == nil {
		return nil
	}
	*into = map[string]string{}
	for key, value := range found {
		if value == nil {
			return refused("property %q: %q is not nullable", name, key)
		}
		(*into)[key] = *value
	}
	return nil
}

// first returns the first problem.
func first(problems ...*problem) *problem {
	for _, p := range problems {
		if p != nil {
			return p
		}
	}
	return nil
}
