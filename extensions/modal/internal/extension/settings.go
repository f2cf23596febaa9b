// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package extension

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/netip"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// settings is the configuration of one backend.
type settings struct {
	TokenID         string
	TokenSecret     sdk.Secret
	ConfigFile      string
	Profile         string
	Environment     string
	ServerURL       string
	DefaultImage    string
	Tunnels         string
	SnapshotTimeout time.Duration
	BeyondMax       string
	Regions         []string
	Cloud           string
	Volumes         map[string]string
	Secrets         []string
	StateDir        string
}

// The values of beyond_max.
const (
	beyondRefuse  = "refuse"
	beyondReplace = "replace"
)

// The values of tunnels.
const (
	tunnelsTLS = "tls"
	tunnelsTCP = "tcp"
)

const (
	defaultServer          = "https://api.modal.com:443"
	defaultImage           = "debian:12-slim"
	defaultSnapshotTimeout = 10 * time.Minute
)

func configKeys() []sdk.ConfigKey {
	return []sdk.ConfigKey{
		{Name: "token_id", Type: "string", Sensitive: true, Description: "Id of a token, together with `token_secret`. Better kept out of files: by default both are taken from `MODAL_TOKEN_ID` and `MODAL_TOKEN_SECRET`, else from the profile file."},
		{Name: "token_secret", Type: "string", Sensitive: true, Description: "Secret of the token."},
		{Name: "config_file", Type: "string", Description: "Modal's profile file. Default: `MODAL_CONFIG_PATH`, else `.modal.toml` in the home directory."},
		{Name: "profile", Type: "string", Description: "Profile of that file. Default: `MODAL_PROFILE`, else the one that is active there, else `default`."},
		{Name: "environment", Type: "string", Description: "Environment of the workspace. Default: `MODAL_ENVIRONMENT`, else the profile's, else the workspace's own default."},
		{Name: "server_url", Type: "string", Description: "Address of the service, without a path: HTTPS, or HTTP on this machine. Default: `MODAL_SERVER_URL`, else the vendor's."},
		{Name: "default_image", Type: "string", Description: "Image of a profile that names none. Default: `debian:12-slim`."},
		{Name: "tunnels", Type: "string", Description: "How ports of a profile are published on the internet: `tls` (default), where an endpoint speaks TLS on port 443, or `tcp`, in the clear."},
		{Name: "snapshot_timeout", Type: "string", Description: "How long a filesystem snapshot may take, as a Go duration. Default: `10m`; the vendor's own is 55 s."},
		{Name: "beyond_max", Type: "string", Description: "What an extend does beyond the lifetime that the vendor was told at the create: `refuse` (default), or `replace`, which snapshots the sandbox, ends it and makes another one from that under the same id. Its files and variables go on; its processes, connections and addresses do not."},
		{Name: "regions", Type: "list", Description: "Regions that sandboxes may run in. Default: the vendor picks."},
		{Name: "cloud", Type: "string", Description: "Cloud that sandboxes run in: `aws`, `gcp`, `oci`. Default: the vendor picks."},
		{Name: "volumes", Type: "map", Description: "Volumes of the workspace, by the absolute path that they are seen at in each sandbox. What is in them outlives sandboxes and is in no snapshot."},
		{Name: "secrets", Type: "list", Description: "Named secrets of the workspace, which each sandbox has as environment variables."},
		{Name: "state_dir", Type: "string", Description: "Directory of what the vendor can't hold: which snapshots there are, and locks. Default: sandboxer's state directory."},
	}
}

func readSettings(config []byte, getenv func(string) string) (settings, error) {
	s := settings{SnapshotTimeout: defaultSnapshotTimeout}
	var keys map[string]json.RawMessage
	if len(bytes.TrimSpace(config)) > 0 {
		if err := json.Unmarshal(config, &keys); err != nil || keys == nil {
			return s, sdk.Invalid("config", "it is not a JSON object")
		}
	}
	secret, timeout := "", ""
	into := map[string]any{
		"token_id": &s.TokenID, "token_secret": &secret, "config_file": &s.ConfigFile, "profile": &s.Profile, "environment": &s.Environment,
		"server_url": &s.ServerURL, "default_image": &s.DefaultImage, "tunnels": &s.Tunnels, "snapshot_timeout": &timeout, "beyond_max": &s.BeyondMax, "regions": &s.Regions,
		"cloud": &s.Cloud, "volumes": &s.Volumes, "secrets": &s.Secrets, "state_dir": &s.StateDir,
	}
	want := map[string]string{"regions": "a list of strings", "secrets": "a list of strings", "volumes": "a map of strings"}
	// Sorted, so that the same configuration gives the same error.
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		target, known := into[key]
		if !known {
			return s, sdk.Invalid(key, "the modal backend has no such setting; it knows %s", strings.Join(slices.Sorted(maps.Keys(into)), ", "))
		}
		// The value is never part of the error: it may be the token.
		if err := json.Unmarshal(keys[key], target); err != nil {
			kind := want[key]
			if kind == "" {
				kind = "a string"
			}
			return s, sdk.Invalid(key, "must be %s", kind)
		}
	}
	s.TokenSecret = sdk.Secret(secret)
	if (s.TokenID == "") != (s.TokenSecret == "") {
		return s, sdk.Invalid("token_id", "a token is an id and a secret: give both or neither")
	}
	if timeout != "" {
		d, err := time.ParseDuration(timeout)
		if err != nil || d < time.Second || d%time.Second != 0 {
			return s, sdk.Invalid("snapshot_timeout", "%.40q is no length of time in whole seconds", timeout)
		}
		s.SnapshotTimeout = d
	}
	return s, s.complete(getenv)
}

// complete fills the defaults in and refuses what can't be.
func (s *settings) complete(getenv func(string) string) error {
	for _, from := range []struct {
		into *string
		name string
	}{{&s.ConfigFile, "MODAL_CONFIG_PATH"}, {&s.Profile, "MODAL_PROFILE"}, {&s.Environment, "MODAL_ENVIRONMENT"}, {&s.ServerURL, "MODAL_SERVER_URL"}} {
		if *from.into == "" {
			*from.into = getenv(from.name)
		}
	}
	if s.DefaultImage == "" {
		s.DefaultImage = defaultImage
	}
	if s.Tunnels == "" {
		s.Tunnels = tunnelsTLS
	}
	if s.Tunnels != tunnelsTLS && s.Tunnels != tunnelsTCP {
		return sdk.Invalid("tunnels", "%.40q is neither tls nor tcp", s.Tunnels)
	}
	if s.BeyondMax == "" {
		s.BeyondMax = beyondRefuse
	}
	if s.BeyondMax != beyondRefuse && s.BeyondMax != beyondReplace {
		return sdk.Invalid("beyond_max", "%.40q is neither refuse nor replace", s.BeyondMax)
	}
	for _, at := range slices.Sorted(maps.Keys(s.Volumes)) {
		if !path.IsAbs(at) || path.Clean(at) != at || at == "/" || !sdk.IsName(s.Volumes[at], 64) {
			return sdk.Invalid("volumes", "%.80q = %.80q is not a clean absolute path and the name of a volume", at, s.Volumes[at])
		}
	}
	for i, name := range s.Secrets {
		if !sdk.IsName(name, 64) {
			return sdk.Invalid(fmt.Sprintf("secrets[%d]", i), "%.80q is not the name of a secret", name)
		}
	}
	s.ServerURL = strings.TrimRight(s.ServerURL, "/")
	if s.ServerURL != "" {
		if err := validServer(s.ServerURL); err != nil {
			return sdk.Invalid("server_url", "%s", err)
		}
	}
	return nil
}

// validServer refuses an address that would send the token in the clear, and
// what the client takes for something else.
func validServer(address string) error {
	u, err := url.Parse(address)
	if err != nil || u.Hostname() == "" || u.RawQuery != "" || u.Fragment != "" || u.Path != "" || u.User != nil {
		return fmt.Errorf("%.120q is not SCHEME://HOST:PORT", address)
	}
	ip, err := netip.ParseAddr(u.Hostname())
	here := u.Hostname() == "localhost" || (err == nil && ip.IsLoopback())
	if u.Scheme != "https" && (u.Scheme != "http" || !here) {
		return fmt.Errorf("%.120q is not https://: the token would be sent in the clear", address)
	}
	return nil
}

// recordDir is where the records of a backend are.
func (s settings) recordDir(backend string, getenv func(string) string) (string, error) {
	dir := s.StateDir
	if dir == "" {
		base := getenv("XDG_STATE_HOME")
		if base == "" {
			home, err := os.UserHomeDir()
			if err != nil {
				return "", sdk.Invalid("state_dir", "none is named, and this user has no home directory: %s", err)
			}
			base = filepath.Join(home, ".local", "state")
		}
		dir = filepath.Join(base, "sandboxer")
	}
	sum := sha256.Sum256([]byte(s.ServerURL + "\n" + s.Environment + "\n" + backend))
	return filepath.Join(dir, Name, hex.EncodeToString(sum[:8])), nil
}

// credentials are what is needed to connect.
type credentials struct {
	id          string
	secret      sdk.Secret
	environment string
	server      string
}

// maxProfileFile bounds the profile file.
const maxProfileFile = 1 << 20

// fileProfile is a table of the profile file.
type fileProfile struct {
	ServerURL   string `toml:"server_url"`
	TokenID     string `toml:"token_id"`
	TokenSecret string `toml:"token_secret"`
	Environment string `toml:"environment"`
	Active      bool   `toml:"active"`
}

// credentials finds the token: a pair from one place, never half from one and
// half from another. What a file says is never part of an error.
func (s settings) credentials(getenv func(string) string) (credentials, error) {
	c := credentials{id: s.TokenID, secret: s.TokenSecret, environment: s.Environment, server: s.ServerURL}
	if c.id == "" {
		c.id, c.secret = getenv("MODAL_TOKEN_ID"), sdk.Secret(getenv("MODAL_TOKEN_SECRET"))
		if (c.id == "") != (c.secret == "") {
			return c, sdk.Errorf(sdk.ErrUnauthenticated, "one of MODAL_TOKEN_ID and MODAL_TOKEN_SECRET is set and the other is not")
		}
	}
	profile, err := s.fromFile()
	if err != nil {
		return c, err
	}
	if c.id == "" {
		c.id, c.secret = profile.TokenID, sdk.Secret(profile.TokenSecret)
	}
	if c.environment == "" {
		c.environment = profile.Environment
	}
	if c.server == "" {
		c.server = strings.TrimRight(profile.ServerURL, "/")
		if err := validServer(c.server); c.server != "" && err != nil {
			return c, sdk.Invalid("config_file", "its server_url: %s", err)
		}
	}
	if c.server == "" {
		c.server = defaultServer
	}
	switch {
	case c.id == "" || c.secret == "":
		return c, &sdk.Error{
			Kind: sdk.ErrUnauthenticated, Message: "there is no token for Modal",
			Advice: "set MODAL_TOKEN_ID and MODAL_TOKEN_SECRET and list both in the backend's env, or run modal token new, which writes .modal.toml",
		}
	case !isToken(c.id) || !isToken(string(c.secret)):
		return c, sdk.Errorf(sdk.ErrUnauthenticated, "the token for Modal holds characters that no token has")
	}
	return c, nil
}

func isToken(text string) bool {
	return !strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' })
}

// fromFile reads the profile. Without a file there is an empty one.
func (s settings) fromFile() (profile fileProfile, err error) {
	name := s.ConfigFile
	if name == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return profile, nil // without a home there is no file in it
		}
		name = filepath.Join(home, ".modal.toml")
	}
	file, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return profile, nil
	}
	if err != nil {
		return profile, &sdk.Error{Kind: sdk.ErrUnauthenticated, Path: "config_file", Message: "Modal's profile file can't be read", Err: err}
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, maxProfileFile))
	if err != nil {
		return profile, &sdk.Error{Kind: sdk.ErrUnauthenticated, Path: "config_file", Message: "Modal's profile file can't be read", Err: err}
	}
	var profiles map[string]fileProfile
	if toml.Unmarshal(content, &profiles) != nil {
		// Its reason may quote the file.
		return profile, sdk.Errorf(sdk.ErrUnauthenticated, "config_file: %s is no TOML of tables", name)
	}
	wanted := s.Profile
	if wanted == "" {
		wanted = "default"
		for _, at := range slices.Sorted(maps.Keys(profiles)) {
			if profiles[at].Active {
				wanted = at
				break
			}
		}
	}
	profile, found := profiles[wanted]
	if !found && s.Profile != "" {
		return profile, sdk.Invalid("profile", "%s has no profile %.80q", name, s.Profile)
	}
	return profile, nil
}
