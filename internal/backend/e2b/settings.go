// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package e2b

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// settings is the configuration of one backend.
type settings struct {
	APIKey        sdk.Secret
	APIKeyFile    string
	APIKeyCommand []string
	Domain        string
	APIURL        string
	SandboxURL    string
	MaxRun        time.Duration // of the plan; zero is unknown
	StateDir      string
}

// defaultDomain is the vendor's.
const defaultDomain = "e2b.app"

// sharedDomains have one host for the sandboxes of all, and route by headers.
var sharedDomains = []string{"e2b.app", "e2b.dev", "e2b.pro", "e2b-staging.dev"}

func configKeys() []sdk.ConfigKey {
	return []sdk.ConfigKey{
		{Name: "api_key", Type: "string", Sensitive: true, Description: "API key of the team. Better kept out of files: by default it is taken from `E2B_API_KEY`."},
		{Name: "api_key_file", Type: "string", Description: "Path of a file that holds the key and nothing else. It is read when the key is first needed."},
		{Name: "api_key_command", Type: "list", Description: "Command that prints the key, with its arguments; it is run when the key is first needed, without a shell, for at most 30 s."},
		{Name: "domain", Type: "string", Description: "Domain of the service. Default: `E2B_DOMAIN`, else `e2b.app`."},
		{Name: "api_url", Type: "string", Description: "Address of the control plane: HTTPS, or HTTP on this machine. Default: `E2B_API_URL`, else `https://api.` and the domain."},
		{Name: "sandbox_url", Type: "string", Description: "Address that every sandbox is reached at, which then goes by headers. Default: `E2B_SANDBOX_URL`, else the domain's."},
		{Name: "max_run", Type: "string", Description: "The longest run that the account's plan allows, as a Go duration (`1h` or `24h` by the vendor's price list). A longer life is then refused before anything is made. Default: unknown, and the vendor refuses it."},
		{Name: "state_dir", Type: "string", Description: "Directory of the records that the vendor can't hold. Default: sandboxer's state directory."},
	}
}

func readSettings(config []byte, getenv func(string) string) (settings, error) {
	var s settings
	var keys map[string]json.RawMessage
	if len(bytes.TrimSpace(config)) > 0 {
		if err := json.Unmarshal(config, &keys); err != nil || keys == nil {
			return s, sdk.Invalid("config", "it is not a JSON object")
		}
	}
	maxRun := ""
	into := map[string]any{
		"api_key": &s.APIKey, "api_key_file": &s.APIKeyFile, "api_key_command": &s.APIKeyCommand, "domain": &s.Domain, "api_url": &s.APIURL,
		"sandbox_url": &s.SandboxURL, "max_run": &maxRun, "state_dir": &s.StateDir,
	}
	// Sorted, so that the same configuration gives the same error.
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		target, known := into[key]
		if !known {
			return s, sdk.Invalid(key, "the e2b backend has no such setting; it knows %s", strings.Join(slices.Sorted(maps.Keys(into)), ", "))
		}
		// The value is never part of the error: it may be the key.
		if key == "api_key" {
			text := ""
			if err := json.Unmarshal(keys[key], &text); err != nil {
				return s, sdk.Invalid(key, "must be a string")
			}
			s.APIKey = sdk.Secret(text)
			continue
		}
		if err := json.Unmarshal(keys[key], target); err != nil {
			want := "a string"
			if key == "api_key_command" {
				want = "a list of strings"
			}
			return s, sdk.Invalid(key, "must be %s", want)
		}
	}
	named := 0
	for _, set := range []bool{s.APIKey != "", s.APIKeyFile != "", len(s.APIKeyCommand) > 0} {
		if set {
			named++
		}
	}
	if named > 1 {
		return s, sdk.Invalid("api_key", "the key is named twice: keep one of api_key, api_key_file and api_key_command")
	}
	if maxRun != "" {
		d, err := time.ParseDuration(maxRun)
		if err != nil || d <= 0 {
			return s, sdk.Invalid("max_run", "%.40q is no length of time", maxRun)
		}
		s.MaxRun = d
	}
	for _, from := range []struct {
		into *string
		name string
	}{{&s.Domain, "E2B_DOMAIN"}, {&s.APIURL, "E2B_API_URL"}, {&s.SandboxURL, "E2B_SANDBOX_URL"}} {
		if *from.into == "" {
			*from.into = getenv(from.name)
		}
	}
	if s.Domain == "" {
		s.Domain = defaultDomain
	}
	if err := validDomain(s.Domain); err != nil {
		return s, sdk.Invalid("domain", "%s", err)
	}
	if s.APIURL == "" {
		s.APIURL = "https://api." + s.Domain
	}
	for at, address := range map[string]*string{"api_url": &s.APIURL, "sandbox_url": &s.SandboxURL} {
		*address = strings.TrimRight(*address, "/")
		if err := validAddress(*address); *address != "" && err != nil {
			return s, sdk.Invalid(at, "%s", err)
		}
	}
	return s, nil
}

// validDomain refuses what would make a host of something else.
func validDomain(domain string) error {
	host, _, err := net.SplitHostPort(domain)
	if err != nil {
		host = domain
	}
	if allow, err := sdk.ParseAllow(host); err != nil || (allow.Name != host && host != "localhost") || strings.HasPrefix(host, "*") {
		return fmt.Errorf("%.80q is no domain", domain)
	}
	return nil
}

// validAddress refuses an address that would send the key in the clear, or
// that is none.
func validAddress(address string) error {
	u, err := url.Parse(address)
	if err != nil || u.Host == "" || u.RawQuery != "" || u.Fragment != "" {
		return fmt.Errorf("%.120q is no address", address)
	}
	if u.User != nil {
		return errors.New("a name or password has no place in the address")
	}
	ip, err := netip.ParseAddr(u.Hostname())
	here := u.Hostname() == "localhost" || (err == nil && ip.IsLoopback())
	if u.Scheme != "https" && (u.Scheme != "http" || !here) {
		return fmt.Errorf("%.120q is not https://: the key would be sent in the clear", address)
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
	sum := sha256.Sum256([]byte(s.APIURL + "\n" + backend))
	return filepath.Join(dir, Name, hex.EncodeToString(sum[:8])), nil
}

// keyDeadline bounds a command that prints the key: some ask a person.
const keyDeadline = 30 * time.Second

// maxKey bounds a key: the vendor's have some fifty characters.
const maxKey = 4096

// key returns the API key. What a file or a command says is never part of an
// error.
func (s settings) key(ctx context.Context, getenv func(string) string) (sdk.Secret, error) {
	said := ""
	switch {
	case s.APIKey != "":
		said = string(s.APIKey)
	case s.APIKeyFile != "":
		file, err := os.Open(s.APIKeyFile)
		if err != nil {
			return "", &sdk.Error{Kind: sdk.ErrUnauthenticated, Path: "api_key_file", Message: "the file with the key can't be read", Err: err}
		}
		defer file.Close()
		content, err := io.ReadAll(io.LimitReader(file, maxKey))
		if err != nil {
			return "", &sdk.Error{Kind: sdk.ErrUnauthenticated, Path: "api_key_file", Message: "the file with the key can't be read", Err: err}
		}
		said = string(content)
	case len(s.APIKeyCommand) > 0:
		ctx, cancel := context.WithTimeout(ctx, keyDeadline)
		defer cancel()
		output, err := exec.CommandContext(ctx, s.APIKeyCommand[0], s.APIKeyCommand[1:]...).Output()
		if err != nil {
			return "", sdk.Errorf(sdk.ErrUnauthenticated, "api_key_command: %.80q gave no key (%T)", s.APIKeyCommand[0], err)
		}
		said = string(output[:min(len(output), maxKey)])
	default:
		said = getenv("E2B_API_KEY")
	}
	said = strings.TrimSpace(said)
	switch {
	case said == "":
		return "", &sdk.Error{Kind: sdk.ErrUnauthenticated, Message: "there is no API key for E2B", Advice: "set E2B_API_KEY, or api_key_file or api_key_command of the backend"}
	case strings.ContainsFunc(said, func(r rune) bool { return r <= ' ' || r > '~' }):
		return "", sdk.Errorf(sdk.ErrUnauthenticated, "the API key for E2B holds characters that no key has")
	}
	return sdk.Secret(said), nil
}
