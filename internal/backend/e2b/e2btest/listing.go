// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package e2btest

// Listings: filters, the order, and the cursor.

import (
	"cmp"
	"encoding/base64"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// query is what a listing asks for.
type query struct {
	meta     map[string]string
	running  bool
	paused   bool
	asc      bool
	after    time.Time // startedAfter
	template string
	limit    int
	cursor   cursor
}

// cursor is where a page ended; the next one begins strictly after it.
type cursor struct {
	started time.Time
	id      string
}

func (c cursor) encode(asc bool) string {
	text := c.started.UTC().Format(time.RFC3339Nano) + "__" + c.id
	if asc {
		text += "__asc"
	}
	return base64.URLEncoding.EncodeToString([]byte(text))
}

func decodeCursor(token string, asc bool) (cursor, *problem) {
	wrong := fail(http.StatusBadRequest, "the cursor is not one of this listing")
	decoded, err := base64.URLEncoding.DecodeString(token)
	if err != nil {
		return cursor{}, wrong
	}
	parts := strings.Split(string(decoded), "__")
	if len(parts) < 2 || len(parts) > 3 || (len(parts) == 3) != asc || (asc && parts[2] != "asc") {
		return cursor{}, wrong
	}
	started, err := time.Parse(time.RFC3339Nano, parts[0])
	if err != nil || parts[1] == "" {
		return cursor{}, wrong
	}
	return cursor{started, parts[1]}, nil
}

// metadataFilter reads the filter, which is escaped at three levels: the
// query's, the whole value's and each key's and value's own.
func metadataFilter(value string) (map[string]string, *problem) {
	wrong := fail(http.StatusBadRequest, "the metadata filter can't be read")
	whole, err := url.QueryUnescape(value)
	if err != nil {
		return nil, wrong
	}
	filter := map[string]string{}
	for _, pair := range strings.Split(whole, "&") {
		key, val, ok := strings.Cut(pair, "=")
		if !ok || strings.Contains(val, "=") {
			return nil, wrong
		}
		key, keyErr := url.QueryUnescape(key)
		val, valErr := url.QueryUnescape(val)
		if keyErr != nil || valErr != nil {
			return nil, wrong
		}
		filter[key] = val
	}
	return filter, nil
}

func (r *request) query() (query, *problem) {
	values := r.http.URL.Query()
	q := query{running: true, paused: true, limit: 100}
	var p *problem
	if values.Has("metadata") {
		if q.meta, p = metadataFilter(values.Get("metadata")); p != nil {
			return q, p
		}
	}
	if values.Has("state") {
		q.running, q.paused = false, false
		for _, state := range strings.Split(values.Get("state"), ",") {
			switch state {
			case "running":
				q.running = true
			case "paused":
				q.paused = true
			default:
				return q, refused("parameter \"state\": %.20q", state)
			}
		}
	}
	switch order := values.Get("order"); order {
	case "", "desc":
	case "asc":
		q.asc = true
	default:
		return q, refused("parameter \"order\": %.20q", order)
	}
	if values.Has("startedAfter") {
		var err error
		if q.after, err = time.Parse(time.RFC3339, values.Get("startedAfter")); err != nil {
			return q, refused("parameter \"startedAfter\" is no time")
		}
	}
	q.template, _, _ = strings.Cut(values.Get("template"), ":")
	if q.limit, p = limit(values, 100); p != nil {
		return q, p
	}
	if token := values.Get("nextToken"); token != "" {
		q.cursor, p = decodeCursor(token, q.asc)
	}
	return q, p
}

func limit(values url.Values, most int) (int, *problem) {
	if !values.Has("limit") {
		return most, nil
	}
	n, err := strconv.Atoi(values.Get("limit"))
	if err != nil || n < 1 || n > most {
		return 0, refused("parameter \"limit\" must be between 1 and %d", most)
	}
	return n, nil
}

func (s *Server) listV2(r *request) (answer, *problem) {
	q, p := r.query()
	if p != nil {
		return answer{}, p
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	page, next, total := s.page(q)
	header := http.Header{}
	if q.running {
		header.Set("X-Total-Running", strconv.Itoa(total))
	}
	if next != "" {
		header.Set("X-Next-Token", next)
	}
	return answer{status: http.StatusOK, body: page, header: header}, nil
}

// listV1 knows running sandboxes and no pages.
func (s *Server) listV1(r *request) (answer, *problem) {
	q := query{running: true, limit: 1 << 30}
	var p *problem
	if values := r.http.URL.Query(); values.Has("metadata") {
		if q.meta, p = metadataFilter(values.Get("metadata")); p != nil {
			return answer{}, p
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	page, _, _ := s.page(q)
	return answer{status: http.StatusOK, body: page}, nil
}

// page returns one page. The caller holds the lock. A sandbox that is being
// snapshotted is in no half, as with the vendor: absence proves nothing.
func (s *Server) page(q query) (page []listed, next string, total int) {
	all := []listed{}
	for _, m := range s.machines {
		state, ok := m.shown()
		if !ok || m.state == snapshotting || !covers(m.meta, q.meta) {
			continue
		}
		if state == "running" && q.running {
			total++
		}
		if (state == "running" && !q.running) || (state == "paused" && !q.paused) || m.started.Before(q.after) {
			continue
		}
		if q.template != "" && m.template.id != q.template && m.template.alias != q.template {
			continue
		}
		all = append(all, s.listedOf(m, state))
	}
	order := func(a, b listed) int {
		return cmp.Or(a.StartedAt.Compare(b.StartedAt), -cmp.Compare(a.SandboxID, b.SandboxID))
	}
	slices.SortFunc(all, func(a, b listed) int {
		if q.asc {
			return order(a, b)
		}
		return order(b, a)
	})
	if q.cursor.id != "" {
		at := listed{StartedAt: q.cursor.started, SandboxID: q.cursor.id}
		all = slices.DeleteFunc(all, func(l listed) bool {
			if q.asc {
				return order(l, at) <= 0
			}
			return order(l, at) >= 0
		})
	}
	if len(all) > q.limit {
		all = all[:q.limit]
		last := all[q.limit-1]
		next = cursor{last.StartedAt, last.SandboxID}.encode(q.asc)
	}
	return all, next, total
}

func covers(meta, want map[string]string) bool {
	for key, value := range want {
		if found, ok := meta[key]; !ok || found != value {
			return false
		}
	}
	return true
}

func isAddress(entry string) bool {
	if _, err := netip.ParseAddr(entry); err == nil {
		return true
	}
	_, err := netip.ParsePrefix(entry)
	return err == nil
}
