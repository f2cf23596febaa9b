// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package docker

import (
	"bytes"
	"encoding/json"
	"maps"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/sand-boxer/terraform-provider-sandboxer/internal/sshtransport"
	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// settings is the configuration of one backend.
type settings struct {
	Host         string
	Context      string
	CertPath     string
	Reaper       string
	ReaperSocket string
	SSH          *sshtransport.Config // nil is its zero value
}

// The choices for who ends sandboxes at their deadline.
const (
	reaperContainer = "container"
	reaperExternal  = "external"
)

func configKeys() []sdk.ConfigKey {
	return []sdk.ConfigKey{
		{Name: "host", Type: "string", Description: "Address of the engine: `unix:///path`, `npipe:////./pipe/name`, `tcp://host:port` or `ssh://user@host:port`, with the path of the engine's socket on that host where it is not found by itself. Default: `context`, else `DOCKER_HOST`, else the Docker context in use, else the socket of this machine's engine."},
		{Name: "context", Type: "string", Description: "Name of a Docker context, as `docker context ls` shows them."},
		{Name: "cert_path", Type: "string", Description: "Directory with `ca.pem`, `cert.pem` and `key.pem` for `tcp://`. Default: `DOCKER_CERT_PATH` where the host is that of `DOCKER_HOST`."},
		{Name: "reaper", Type: "string", Description: "Who ends sandboxes at their deadline when every client is gone: `container` (default), one small container per fleet on the engine, or `external`, whoever runs `sandboxer reap`."},
		{Name: "reaper_socket", Type: "string", Description: "Path of the engine's socket on the engine's own machine, for the reaper container. Default: the one of `host` where that is a socket, the one that was found behind `ssh://`, else `/var/run/docker.sock`."},
		{Name: "ssh", Type: "map", Sensitive: true, Description: "How an engine behind `ssh://` is reached. Nothing is needed where the agent or `~/.ssh` has a key that is let in, and `known_hosts` the key of the host."},
	}
}

func readSettings(config []byte) (settings, error) {
	s := settings{Reaper: reaperContainer}
	var keys map[string]json.RawMessage
	if len(bytes.TrimSpace(config)) > 0 {
		if err := json.Unmarshal(config, &keys); err != nil {
			return s, sdk.Invalid("config", "not a JSON object: %v", err)
		}
	}
	into := map[string]*string{"host": &s.Host, "context": &s.Context, "cert_path": &s.CertPath, "reaper": &s.Reaper, "reaper_socket": &s.ReaperSocket}
	// Sorted, so that the same configuration gives the same error.
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		if key == "ssh" {
			ssh, err := sshtransport.DecodeConfig(keys[key], "ssh")
			if err != nil {
				return s, err
			}
			s.SSH = &ssh
			continue
		}
		target, known := into[key]
		if !known {
			return s, sdk.Invalid(key, "the docker backend has no such setting; it knows %s, ssh", strings.Join(slices.Sorted(maps.Keys(into)), ", "))
		}
		if err := json.Unmarshal(keys[key], target); err != nil {
			return s, sdk.Invalid(key, "must be a string")
		}
	}
	if s.Host != "" && s.Context != "" {
		return s, sdk.Invalid("context", "host names the engine already; leave out one of them")
	}
	if s.Host != "" {
		u, err := parseHost(s.Host)
		if err != nil {
			return s, err
		}
		if s.SSH != nil && u.Scheme != sshtransport.Scheme {
			return s, sdk.Invalid("ssh", "the engine at %q is not reached over SSH", clip(s.Host))
		}
	}
	if s.Reaper != reaperContainer && s.Reaper != reaperExternal {
		return s, sdk.Invalid("reaper", "%q is neither container nor external", clip(s.Reaper))
	}
	if s.ReaperSocket != "" && !path.IsAbs(s.ReaperSocket) {
		return s, sdk.Invalid("reaper_socket", "%q is not an absolute path", clip(s.ReaperSocket))
	}
	return s, nil
}

// parseHost reads an engine's address.
func parseHost(text string) (*url.URL, error) {
	if strings.HasPrefix(text, sshtransport.Scheme+":") {
		if _, err := sshtransport.ParseAddress(text); err != nil {
			return nil, sdk.Invalid("host", "%s", err)
		}
	}
	u, err := url.Parse(text)
	if err != nil {
		return nil, sdk.Invalid("host", "%q is no address", clip(text))
	}
	switch u.Scheme {
	case "unix", "npipe":
		if u.Path == "" {
			return nil, sdk.Invalid("host", "%q names no socket", clip(text))
		}
	case sshtransport.Scheme:
	case "tcp":
		if u.Host == "" {
			return nil, sdk.Invalid("host", "%q names no host", clip(text))
		}
		if _, set := u.User.Password(); set {
			return nil, sdk.Invalid("host", "a password has no place in an address: use a key or an agent")
		}
	default:
		return nil, sdk.Invalid("host", "%q does not begin with unix://, npipe://, tcp:// or ssh://", clip(text))
	}
	return u, nil
}

// clip bounds outside text in a message.
func clip(s string) string {
	const most = 120
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}
