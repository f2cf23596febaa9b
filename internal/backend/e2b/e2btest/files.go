// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package e2btest

// envd's files: upload and download, and the calls about the file system.

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"mime/multipart"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

type writtenFile struct {
	Name     string            `json:"name"`
	Path     string            `json:"path"`
	Type     string            `json:"type"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

func (e *envd) serveFiles(w http.ResponseWriter, r *http.Request) {
	home, ok := homeOf(user(r))
	if !ok {
		envdProblem(w, http.StatusUnauthorized, "no user %q", user(r))
		return
	}
	if err := e.machine.root.Open(); err != nil {
		envdProblem(w, http.StatusInternalServerError, "%s", err)
		return
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		e.download(w, r, home)
	case http.MethodPost:
		e.upload(w, r, home)
	default:
		w.WriteHeader(http.StatusMethodNotAllowed)
	}
}

func (e *envd) download(w http.ResponseWriter, r *http.Request, home string) {
	name := r.URL.Query().Get("path")
	resolved, err := e.machine.root.inside(name, home)
	if err != nil {
		envdProblem(w, http.StatusBadRequest, "%s", err)
		return
	}
	file, err := os.Open(resolved)
	if err != nil {
		envdProblem(w, http.StatusNotFound, "path %q does not exist", name)
		return
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil || !info.Mode().IsRegular() {
		envdProblem(w, http.StatusBadRequest, "path %q is no file", name)
		return
	}
	w.Header().Set("Content-Disposition", mime.FormatMediaType("inline", map[string]string{"filename": path.Base(name)}))
	w.Header().Set("Vary", "Accept-Encoding")
	if strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") && r.Header.Get("Range") == "" {
		w.Header().Set("Content-Encoding", "gzip")
		w.Header().Set("Content-Type", "application/octet-stream")
		packed := gzip.NewWriter(w)
		_, _ = io.Copy(packed, file) // the client may have gone
		_ = packed.Close()
		return
	}
	http.ServeContent(w, r, path.Base(name), info.ModTime(), file)
}

func (e *envd) upload(w http.ResponseWriter, r *http.Request, home string) {
	kind, params, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	var body io.Reader = r.Body
	if r.Header.Get("Content-Encoding") == "gzip" {
		unpacked, err := gzip.NewReader(r.Body)
		if err != nil {
			envdProblem(w, http.StatusBadRequest, "%s", err)
			return
		}
		body = unpacked
	}
	meta := map[string]string{}
	for name, values := range r.Header {
		if key, ok := strings.CutPrefix(name, "X-Metadata-"); ok {
			meta[strings.ToLower(key)] = values[0]
		}
	}
	target := r.URL.Query().Get("path")
	written := []writtenFile{}
	put := func(name string, from io.Reader) bool {
		at, status, err := e.put(name, home, from)
		if err != nil {
			envdProblem(w, status, "%s", err)
			return false
		}
		written = append(written, writtenFile{Name: path.Base(at), Path: at, Type: "file", Metadata: meta})
		return true
	}
	switch kind {
	case "application/octet-stream":
		if target == "" {
			envdProblem(w, http.StatusBadRequest, "a raw upload needs a path")
			return
		}
		if !put(target, body) {
			return
		}
	case "multipart/form-data":
		parts := multipart.NewReader(body, params["boundary"])
		for {
			part, err := parts.NextPart()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				envdProblem(w, http.StatusBadRequest, "%s", err)
				return
			}
			if part.FormName() != "file" {
				continue // in silence, as envd does
			}
			name := target
			if name == "" {
				// Not FileName, which drops the directories.
				_, disposition, _ := mime.ParseMediaType(part.Header.Get("Content-Disposition"))
				name = disposition["filename"]
			} else if len(written) > 0 {
				envdProblem(w, http.StatusBadRequest, "a path is for one file")
				return
			}
			if !put(name, part) {
				return
			}
		}
	default:
		envdProblem(w, http.StatusBadRequest, "content type %q", kind)
		return
	}
	encoded, err := json.Marshal(written)
	if err != nil {
		envdProblem(w, http.StatusInternalServerError, "%s", err)
		return
	}
	// Declared as JSON and sent as text, by envd too.
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = w.Write(encoded) // the client may have gone
}

// put writes one file and returns its path in the sandbox.
func (e *envd) put(name, home string, from io.Reader) (at string, status int, err error) {
	resolved, err := e.machine.root.inside(name, home)
	if err != nil {
		return "", http.StatusBadRequest, err
	}
	if info, err := os.Stat(resolved); err == nil && info.IsDir() {
		return "", http.StatusBadRequest, fmt.Errorf("path %q is a directory", name)
	}
	if err := os.MkdirAll(filepath.Dir(resolved), 0o755); err != nil {
		return "", http.StatusInternalServerError, err
	}
	file, err := os.OpenFile(resolved, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o644)
	if err != nil {
		return "", http.StatusInternalServerError, err
	}
	_, err = io.Copy(file, from)
	if err = errors.Join(err, file.Close()); err != nil {
		return "", http.StatusInternalServerError, err
	}
	if !path.IsAbs(name) {
		name = path.Join(home, name)
	}
	return path.Clean(name), 0, nil
}

// entryInfo is a file as the file system calls show it.
type entryInfo struct {
	Name          string `json:"name"`
	Type          string `json:"type"`
	Path          string `json:"path"`
	Size          string `json:"size,omitempty"` // a string, left out when 0
	Mode          uint32 `json:"mode"`
	Permissions   string `json:"permissions"`
	Owner         string `json:"owner"`
	Group         string `json:"group"`
	ModifiedTime  string `json:"modifiedTime"`
	SymlinkTarget string `json:"symlinkTarget,omitempty"`
}

// entry shows a file by its path in the sandbox.
func (e *envd) entry(name, resolved string) (entryInfo, *rpcError) {
	info, err := os.Lstat(resolved)
	if err != nil {
		return entryInfo{}, rpcFail("not_found", "path %q does not exist", name)
	}
	shown := entryInfo{
		Name: path.Base(name), Type: "FILE_TYPE_FILE", Path: name, Mode: uint32(info.Mode().Perm()), Permissions: info.Mode().String(),
		Owner: "user", Group: "user", ModifiedTime: info.ModTime().UTC().Format(time.RFC3339Nano),
	}
	switch {
	case info.IsDir():
		shown.Type = "FILE_TYPE_DIRECTORY"
	case info.Mode()&fs.ModeSymlink != 0:
		shown.Type = "FILE_TYPE_SYMLINK"
		shown.SymlinkTarget, _ = os.Readlink(resolved) // empty where it went
	}
	if info.Size() > 0 {
		shown.Size = strconv.FormatInt(info.Size(), 10)
	}
	return shown, nil
}

func (e *envd) serveFilesystem(w http.ResponseWriter, r *http.Request, method string) {
	home, ok := homeOf(user(r))
	if !ok {
		writeJSON(w, http.StatusUnauthorized, rpcFail("unauthenticated", "no user %q", user(r)))
		return
	}
	var req struct {
		Path, Source, Destination string
		Depth                     int
	}
	// Absolute in the sandbox, and where that is on the machine. The last part
	// of a path is not followed: it may be about a link.
	locate := func(name string) (string, string, *rpcError) {
		if !path.IsAbs(name) {
			name = path.Join(home, name)
		}
		name = path.Clean(name)
		parent, err := e.machine.root.inside(path.Dir(name), home)
		if err != nil {
			return "", "", rpcFail("invalid_argument", "%s", err)
		}
		if name == "/" {
			return name, parent, nil
		}
		return name, filepath.Join(parent, path.Base(name)), nil
	}
	calls := map[string]func() (any, *rpcError){
		"Stat": func() (any, *rpcError) {
			name, at, failed := locate(req.Path)
			if failed != nil {
				return nil, failed
			}
			entry, failed := e.entry(name, at)
			return map[string]any{"entry": entry}, failed
		},
		"MakeDir": func() (any, *rpcError) {
			name, at, failed := locate(req.Path)
			if failed != nil {
				return nil, failed
			}
			if info, err := os.Stat(at); err == nil {
				if info.IsDir() {
					return nil, rpcFail("already_exists", "directory %q exists", name)
				}
				return nil, rpcFail("invalid_argument", "path %q is no directory", name)
			}
			if err := os.MkdirAll(at, 0o755); err != nil {
				return nil, rpcFail("internal", "%s", err)
			}
			entry, failed := e.entry(name, at)
			return map[string]any{"entry": entry}, failed
		},
		"Move": func() (any, *rpcError) {
			name, from, failed := locate(req.Source)
			if failed != nil {
				return nil, failed
			}
			if _, err := os.Lstat(from); err != nil {
				return nil, rpcFail("not_found", "path %q does not exist", name)
			}
			name, to, failed := locate(req.Destination)
			if failed != nil {
				return nil, failed
			}
			if err := errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.Rename(from, to)); err != nil {
				return nil, rpcFail("internal", "%s", err)
			}
			entry, failed := e.entry(name, to)
			return map[string]any{"entry": entry}, failed
		},
		"ListDir": func() (any, *rpcError) {
			name, at, failed := locate(req.Path)
			if failed != nil {
				return nil, failed
			}
			entries, failed := e.listDir(name, at, max(req.Depth, 1))
			return map[string]any{"entries": entries}, failed
		},
		"Remove": func() (any, *rpcError) {
			_, at, failed := locate(req.Path)
			if failed != nil {
				return nil, failed
			}
			if err := os.RemoveAll(at); err != nil {
				return nil, rpcFail("internal", "%s", err)
			}
			return struct{}{}, nil
		},
	}
	call, ok := calls[method]
	if !ok {
		http.NotFound(w, r)
		return
	}
	unary(w, r, &req, func() (any, *rpcError) {
		if err := e.machine.root.Open(); err != nil {
			return nil, rpcFail("internal", "%s", err)
		}
		return call()
	})
}

func (e *envd) listDir(name, at string, depth int) ([]entryInfo, *rpcError) {
	found, err := os.ReadDir(at)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, rpcFail("not_found", "path %q does not exist", name)
		}
		return nil, rpcFail("invalid_argument", "path %q is no directory", name)
	}
	entries := []entryInfo{}
	for _, f := range found {
		child, childAt := path.Join(name, f.Name()), filepath.Join(at, f.Name())
		entry, failed := e.entry(child, childAt)
		if failed != nil {
			continue // it went while the directory was read
		}
		entries = append(entries, entry)
		if f.IsDir() && depth > 1 {
			below, failed := e.listDir(child, childAt, depth-1)
			if failed != nil {
				return nil, failed
			}
			entries = append(entries, below...)
		}
	}
	slices.SortFunc(entries, func(a, b entryInfo) int { return strings.Compare(a.Path, b.Path) })
	return entries, nil
}
