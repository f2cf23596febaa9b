// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package e2btest

// Templates, and snapshots, which are templates that were made from a
// sandbox.

import (
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"
)

// team is the slug of the only team.
const team = "sandboxer-team"

// template is what sandboxes are made from. All of a template's tags point to
// one build here, except where a snapshot of the same name has moved one.
type template struct {
	id        string
	alias     string // without the team
	tags      []string
	image     *image // nil is an empty root
	source    string // sandbox id; of a snapshot
	named     bool
	build     string // id of the last build
	status    string // of the last build
	made      time.Time
	updated   time.Time
	spawned   int
	lastSpawn time.Time
}

// ref is how a snapshot is named.
func (t *template) ref() string {
	if t.named {
		return team + "/" + t.alias + ":" + t.tags[0]
	}
	return t.id + ":default"
}

// names are the names without tags.
func (t *template) names() []string {
	if t.alias == "" {
		return []string{}
	}
	return []string{team + "/" + t.alias}
}

// addTemplate makes a template that is ready. The caller holds the lock, or
// nobody else has the server yet.
func (s *Server) addTemplate(alias string) *template {
	now := s.now()
	t := &template{id: randomID(20), alias: alias, tags: []string{"default"}, build: newBuild(), status: "ready", made: now, updated: now}
	s.templates[t.id] = t
	if alias != "" {
		s.aliases[alias] = t.id
	}
	return t
}

// newBuild returns the id of a build, which has the form of a UUID.
func newBuild() string {
	h := digest(randomID(20))
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:32]
}

var (
	aliasForm = regexp.MustCompile("^[a-z0-9-_]{1,128}$")
	tagForm   = regexp.MustCompile("^[a-z0-9-_.]{1,128}$")
)

// parseRef splits a reference into its alias or id, and its tag.
func parseRef(ref string) (name, tag string, p *problem) {
	ref = strings.ToLower(strings.TrimSpace(ref))
	name, tag, tagged := strings.Cut(ref, ":")
	if !tagged {
		tag = "default"
	}
	if slug, alias, ok := strings.Cut(name, "/"); ok {
		if slug != team {
			return "", "", fail(http.StatusForbidden, "the template belongs to another team")
		}
		name = alias
	}
	if !aliasForm.MatchString(name) || !tagForm.MatchString(tag) {
		return "", "", fail(http.StatusBadRequest, "%.80q is no template", ref)
	}
	return name, tag, nil
}

// find returns a template by its reference, whatever its tag. The caller
// holds the lock.
func (s *Server) find(ref string) (*template, string, *problem) {
	name, tag, p := parseRef(ref)
	if p != nil {
		return nil, "", p
	}
	if id, ok := s.aliases[name]; ok {
		name = id
	}
	t := s.templates[name]
	if t == nil {
		return nil, "", fail(http.StatusNotFound, "template %.80q does not exist", ref)
	}
	return t, tag, nil
}

// resolve returns the template that a sandbox is to be made from. The caller
// holds the lock.
func (s *Server) resolve(ref string) (*template, *problem) {
	t, tag, p := s.find(ref)
	if p != nil {
		return nil, p
	}
	if !slices.Contains(t.tags, tag) || t.status != "ready" {
		return nil, fail(http.StatusNotFound, "template %.80q has no ready build for tag %s", ref, tag)
	}
	return t, nil
}

// snapshotInfo is a snapshot as it is shown: neither its time nor its source.
type snapshotInfo struct {
	SnapshotID string   `json:"snapshotID"`
	Names      []string `json:"names"`
}

func (t *template) info() snapshotInfo {
	if t.named {
		return snapshotInfo{t.ref(), t.names()}
	}
	return snapshotInfo{t.ref(), []string{}}
}

func (s *Server) snapshot(r *request) (answer, *problem) {
	o, p := r.object(true)
	if p != nil {
		return answer{}, p
	}
	ref := ""
	if p := read(o, "name", &ref); p != nil {
		return answer{}, p
	}
	alias, tag := "", "default"
	if ref != "" {
		if alias, tag, p = parseRef(ref); p != nil {
			return answer{}, p
		}
	}
	m, made, p := s.checkpoint(r.id())
	if p != nil {
		return answer{}, p
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.templates[s.aliases[alias]]
	if alias == "" || t == nil {
		t = s.addTemplate(alias)
		t.tags = nil
	}
	// The same name again is the same template, with other content.
	t.image, t.source, t.named, t.build, t.updated = made, m.id, alias != "", newBuild(), s.now()
	t.tags = append([]string{tag}, slices.DeleteFunc(t.tags, func(have string) bool { return have == tag })...)
	return answer{status: http.StatusCreated, body: t.info()}, nil
}

func (s *Server) listSnapshots(r *request) (answer, *problem) {
	values := r.http.URL.Query()
	most, p := limit(values, 100)
	if p != nil {
		return answer{}, p
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	infos := []snapshotInfo{}
	all := slices.SortedFunc(maps.Values(s.templates), func(a, b *template) int { return strings.Compare(a.id, b.id) })
	header := http.Header{}
	for _, t := range all {
		if t.source == "" || (values.Has("sandboxID") && t.source != values.Get("sandboxID")) || (values.Has("name") && t.alias != values.Get("name")) {
			continue
		}
		if after := values.Get("nextToken"); after != "" && t.id <= after {
			continue
		}
		if len(infos) == most {
			last, _, _ := s.find(infos[most-1].SnapshotID)
			header.Set("X-Next-Token", last.id)
			break
		}
		infos = append(infos, t.info())
	}
	return answer{status: http.StatusOK, body: infos, header: header}, nil
}

// deleteTemplate removes a template with all of its tags: the one in the path
// means nothing.
func (s *Server) deleteTemplate(r *request) (answer, *problem) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, _, p := s.find(r.id())
	if p != nil {
		return answer{}, p
	}
	for _, m := range s.machines {
		if m.template == t && m.exists() {
			return answer{}, fail(http.StatusBadRequest, "template %s is in use by sandbox %s", t.id, m.id)
		}
	}
	delete(s.templates, t.id)
	delete(s.aliases, t.alias)
	return answer{status: http.StatusNoContent}, nil
}

// shownTemplate is a template in a listing.
func (t *template) shown(envd string) map[string]any {
	return map[string]any{
		"templateID": t.id, "buildID": t.build, "cpuCount": 2, "memoryMB": 512, "diskSizeMB": 2048, "public": false,
		"aliases": t.aliases(), "names": t.names(), "createdAt": t.made, "updatedAt": t.updated, "createdBy": nil, "lastSpawnedAt": t.lastSpawnedAt(),
		"spawnCount": t.spawned, "buildCount": 1, "envdVersion": envd, "buildStatus": t.status,
	}
}

func (t *template) aliases() []string {
	if t.alias == "" {
		return []string{}
	}
	return []string{t.alias}
}

func (t *template) lastSpawnedAt() *time.Time {
	if t.lastSpawn.IsZero() {
		return nil
	}
	return &t.lastSpawn
}

func (s *Server) listTemplates(r *request) (answer, *problem) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := []map[string]any{}
	for _, t := range slices.SortedFunc(maps.Values(s.templates), func(a, b *template) int { return strings.Compare(a.id, b.id) }) {
		if t.source == "" {
			all = append(all, t.shown(s.options.EnvdVersion))
		}
	}
	return answer{status: http.StatusOK, body: all}, nil
}

func (s *Server) getTemplate(r *request) (answer, *problem) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, _, p := s.find(r.id())
	if p != nil {
		return answer{}, p
	}
	shown := t.shown(s.options.EnvdVersion)
	shown["builds"] = []map[string]any{{
		"buildID": t.build, "status": t.status, "createdAt": t.made, "updatedAt": t.updated, "finishedAt": t.updated,
		"cpuCount": 2, "memoryMB": 512, "diskSizeMB": 2048, "envdVersion": s.options.EnvdVersion,
	}}
	return answer{status: http.StatusOK, body: shown}, nil
}

// getOfTemplate answers /templates/aliases/ALIAS and /templates/ID/tags.
func (s *Server) getOfTemplate(r *request) (answer, *problem) {
	what := r.http.PathValue("what")
	switch {
	case r.id() == "aliases":
		return s.getAlias(what)
	case what == "tags":
		return s.getTags(r)
	}
	return answer{}, fail(http.StatusNotFound, "no operation %.80s", r.http.URL.Path)
}

func (s *Server) getAlias(alias string) (answer, *problem) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, _, p := s.find(alias)
	if p != nil {
		return answer{}, p
	}
	return answer{status: http.StatusOK, body: map[string]any{"templateID": t.id, "public": false}}, nil
}

func (s *Server) createTemplate(r *request) (answer, *problem) {
	o, p := r.object(true)
	if p != nil {
		return answer{}, p
	}
	name, alias := "", ""
	var tags []string
	if p := first(read(o, "name", &name), read(o, "alias", &alias), read(o, "tags", &tags)); p != nil {
		return answer{}, p
	}
	if name == "" {
		name = alias
	}
	name, tag, p := parseRef(name)
	if p != nil {
		return answer{}, p
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.templates[s.aliases[name]]
	if t == nil {
		t = s.addTemplate(name)
		t.status, t.tags = "waiting", nil
	}
	for _, tag := range append(tags, tag) {
		if !tagForm.MatchString(tag) {
			return answer{}, fail(http.StatusBadRequest, "%.40q is no tag", tag)
		}
		if !slices.Contains(t.tags, tag) {
			t.tags = append(t.tags, tag)
		}
	}
	t.build = newBuild()
	return answer{status: http.StatusAccepted, body: map[string]any{
		"templateID": t.id, "buildID": t.build, "public": false, "aliases": t.aliases(), "names": t.names(), "tags": t.tags,
	}}, nil
}

func (s *Server) startBuild(r *request) (answer, *problem) {
	o, p := r.object(true)
	if p != nil {
		return answer{}, p
	}
	image, from := "", ""
	var steps []object
	if p := first(read(o, "fromImage", &image), read(o, "fromTemplate", &from), read(o, "steps", &steps)); p != nil {
		return answer{}, p
	}
	if (image == "") == (from == "") {
		return answer{}, fail(http.StatusBadRequest, "one of fromImage and fromTemplate is needed")
	}
	for _, step := range steps {
		if !step.has("type") {
			return answer{}, refused("property \"type\" is missing")
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t, _, p := s.find(r.id())
	if p != nil {
		return answer{}, p
	}
	if t.build != r.http.PathValue("build") {
		return answer{}, fail(http.StatusNotFound, "there is no such build")
	}
	t.status, t.updated = "ready", s.now()
	if strings.Contains(image, "does-not-exist") {
		t.status = "error"
	}
	return answer{status: http.StatusAccepted}, nil
}

func (s *Server) buildStatus(r *request) (answer, *problem) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, _, p := s.find(r.id())
	if p != nil {
		return answer{}, p
	}
	if t.build != r.http.PathValue("build") {
		return answer{}, fail(http.StatusNotFound, "there is no such build")
	}
	status := map[string]any{"templateID": t.id, "buildID": t.build, "status": t.status, "logs": []string{}, "logEntries": []any{}}
	if t.status == "error" {
		status["reason"] = map[string]any{"message": "the base image can't be pulled"}
	}
	return answer{status: http.StatusOK, body: status}, nil
}

func (s *Server) addTags(r *request) (answer, *problem) {
	o, p := r.object(true)
	if p != nil {
		return answer{}, p
	}
	target := ""
	var tags []string
	if !o.has("target") || !o.has("tags") {
		return answer{}, refused("properties \"target\" and \"tags\" are needed")
	}
	if p := first(read(o, "target", &target), read(o, "tags", &tags)); p != nil {
		return answer{}, p
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t, p := s.resolve(target)
	if p != nil {
		return answer{}, p
	}
	for _, tag := range tags {
		if !tagForm.MatchString(tag) {
			return answer{}, fail(http.StatusBadRequest, "%.40q is no tag", tag)
		}
		if !slices.Contains(t.tags, tag) {
			t.tags = append(t.tags, tag)
		}
	}
	return answer{status: http.StatusCreated, body: map[string]any{"tags": tags, "buildID": t.build}}, nil
}

func (s *Server) removeTags(r *request) (answer, *problem) {
	o, p := r.object(true)
	if p != nil {
		return answer{}, p
	}
	name := ""
	var tags []string
	if p := first(read(o, "name", &name), read(o, "tags", &tags)); p != nil {
		return answer{}, p
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t, _, p := s.find(name)
	if p != nil {
		return answer{}, p
	}
	t.tags = slices.DeleteFunc(t.tags, func(tag string) bool { return slices.Contains(tags, tag) })
	return answer{status: http.StatusNoContent}, nil
}

func (s *Server) getTags(r *request) (answer, *problem) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, _, p := s.find(r.id())
	if p != nil {
		return answer{}, p
	}
	all := []map[string]any{}
	for _, tag := range t.tags {
		all = append(all, map[string]any{"tag": tag, "buildID": t.build, "createdAt": t.updated})
	}
	return answer{status: http.StatusOK, body: all}, nil
}
