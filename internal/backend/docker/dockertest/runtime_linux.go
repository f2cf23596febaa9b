// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package dockertest

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// leakKind names the leak to the test's own program where the engine starts
// it as a runtime.
const leakKind = "SANDBOXER_DOCKERTEST_LEAK"

// RuntimePrefix begins the names of the engine's runtimes that leak. They
// start what they are told to, and give it something of the host that the
// engine knows nothing of, as a runtime hook does.
const RuntimePrefix = "leak-"

// LeakDir is a directory of the host, in the engine's own directory, whose
// content is for tests to make.
const LeakDir = "leaked"

// leaks change a container's specification, by the name of the runtime.
var leaks = map[string]func(spec map[string]any, dir string){
	"environment": func(spec map[string]any, _ string) {
		process := object(spec, "process")
		process["env"] = append(list(process, "env"), "REGISTRY_PASSWORD=leaked-by-a-hook")
	},
	"mounts": func(spec map[string]any, dir string) { bind(spec, dir, "/mnt/host") },
	"engine": func(spec map[string]any, dir string) {
		bind(spec, filepath.Join(filepath.Dir(dir), "docker.sock"), "/run/docker.sock")
	},
	"agents": func(spec map[string]any, dir string) {
		bind(spec, filepath.Join(dir, "agent.sock"), "/run/ssh-agent.sock")
	},
	"tokens": func(spec map[string]any, dir string) {
		bind(spec, filepath.Join(dir, "token"), "/var/run/secrets/kubernetes.io/serviceaccount/token")
	},
	"devices": func(spec map[string]any, _ string) {
		linux := object(spec, "linux")
		linux["devices"] = append(list(linux, "devices"), map[string]any{"path": "/dev/leaked", "type": "c", "major": 1, "minor": 11, "fileMode": 0o666})
	},
	"namespaces": func(spec map[string]any, _ string) {
		linux := object(spec, "linux")
		linux["namespaces"] = slices.DeleteFunc(list(linux, "namespaces"), func(n any) bool {
			namespace, _ := n.(map[string]any)
			return namespace["type"] == "pid"
		})
	},
	"privileges": func(spec map[string]any, _ string) { object(spec, "process")["noNewPrivileges"] = false },
}

func object(in map[string]any, name string) map[string]any {
	found, _ := in[name].(map[string]any)
	if found == nil {
		found = map[string]any{}
		in[name] = found
	}
	return found
}

func list(in map[string]any, name string) []any {
	found, _ := in[name].([]any)
	return found
}

func bind(spec map[string]any, from, to string) {
	spec["mounts"] = append(list(spec, "mounts"), map[string]any{"destination": to, "type": "bind", "source": from, "options": []string{"rbind", "ro"}})
}

// makeRuntimes writes a program for each leak and returns the engine's
// configuration of them.
func makeRuntimes(work string) ([]byte, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(work, "runtimes")
	if err := errors.Join(os.Mkdir(dir, 0o700), os.Mkdir(filepath.Join(work, LeakDir), 0o755)); err != nil {
		return nil, err
	}
	runtimes := map[string]any{}
	for _, name := range slices.Sorted(maps.Keys(leaks)) {
		file := filepath.Join(dir, name)
		script := fmt.Sprintf("#!/bin/sh\n%s=%s %s=%s exec '%s' \"$@\"\n", leakKind, name, workDir, work, self)
		if err := os.WriteFile(file, []byte(script), 0o700); err != nil {
			return nil, err
		}
		runtimes[RuntimePrefix+name] = map[string]any{"path": file}
	}
	return json.Marshal(map[string]any{"runtimes": runtimes})
}

// leak is a runtime: it changes the specification of what is created, and
// becomes the runtime that the machine has.
func leak(kind, work string) error {
	args := os.Args[1:]
	bundle := slices.Index(args, "--bundle")
	if slices.Contains(args, "create") && bundle >= 0 && bundle+1 < len(args) {
		if err := spoil(filepath.Join(args[bundle+1], "config.json"), kind, filepath.Join(work, LeakDir)); err != nil {
			return err
		}
	}
	program, err := find("runc")
	if err != nil {
		return err
	}
	env := slices.DeleteFunc(os.Environ(), func(pair string) bool {
		return strings.HasPrefix(pair, leakKind+"=") || strings.HasPrefix(pair, workDir+"=")
	})
	return syscall.Exec(program, append([]string{"runc"}, args...), env)
}

func spoil(file, kind, dir string) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var spec map[string]any
	if err := json.Unmarshal(content, &spec); err != nil {
		return err
	}
	leaks[kind](spec, dir)
	if content, err = json.Marshal(spec); err != nil {
		return err
	}
	return os.WriteFile(file, content, 0o600)
}
