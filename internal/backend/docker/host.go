// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package docker

// Where the engine is: what Docker's own command line would use, unless the
// configuration says otherwise.

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"runtime"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// host is an engine's address.
type host struct {
	url    *url.URL
	source string // where the address is from, for people
	// The files of TLS; all empty without.
	ca, cert, key string
	skipVerify    bool
}

func (h host) String() string { return h.url.Redacted() }

// resolveHost finds the engine. It reads files and opens no connection.
func (e *Extension) resolveHost() (host, error) {
	getenv, s := e.opts.Getenv, e.settings
	if s.Host != "" {
		return e.hostAt(s.Host, "host", s.CertPath, false)
	}
	if s.Context != "" {
		return e.hostOfContext(s.Context, "context")
	}
	if address := getenv("DOCKER_HOST"); address != "" {
		certs := s.CertPath
		if certs == "" {
			certs = getenv("DOCKER_CERT_PATH")
		}
		// As Docker's command line has it: with certificates and without
		// DOCKER_TLS_VERIFY the server is not verified.
		return e.hostAt(address, "DOCKER_HOST", certs, getenv("DOCKER_TLS_VERIFY") == "")
	}
	if name := getenv("DOCKER_CONTEXT"); name != "" && name != "default" {
		return e.hostOfContext(name, "DOCKER_CONTEXT")
	}
	config, err := e.readDockerConfig()
	if err != nil {
		return host{}, err
	}
	if name := config.CurrentContext; name != "" && name != "default" {
		return e.hostOfContext(name, "the Docker context in use")
	}
	return e.hostAt(e.defaultHost(), "the default", "", false)
}

func (e *Extension) hostAt(address, source, certs string, skipVerify bool) (host, error) {
	u, err := parseHost(address)
	if err != nil {
		return host{}, err
	}
	h := host{url: u, source: source}
	if certs != "" && u.Scheme == "tcp" {
		h.ca, h.cert, h.key = filepath.Join(certs, "ca.pem"), filepath.Join(certs, "cert.pem"), filepath.Join(certs, "key.pem")
		h.skipVerify = skipVerify
	}
	return h, nil
}

// defaultHost is the socket of this machine's engine. The system's comes
// first, then those of an engine that this user runs.
func (e *Extension) defaultHost() string {
	if runtime.GOOS == "windows" {
		return "npipe:////./pipe/docker_engine"
	}
	const system = "/var/run/docker.sock"
	candidates := []string{system}
	if dir := e.opts.Getenv("XDG_RUNTIME_DIR"); filepath.IsAbs(dir) {
		candidates = append(candidates, filepath.Join(dir, "docker.sock"), filepath.Join(dir, "podman", "podman.sock"))
	}
	if home := e.opts.Getenv("HOME"); filepath.IsAbs(home) {
		candidates = append(candidates, filepath.Join(home, ".docker", "run", "docker.sock"))
	}
	for _, socket := range candidates {
		if _, err := os.Stat(socket); err == nil {
			return "unix://" + socket
		}
	}
	return "unix://" + system
}

// dockerDir is the directory of Docker's command line.
func (e *Extension) dockerDir() (string, error) {
	if dir := e.opts.Getenv("DOCKER_CONFIG"); dir != "" {
		return dir, nil
	}
	home := e.opts.Getenv("HOME")
	if runtime.GOOS == "windows" {
		home = e.opts.Getenv("USERPROFILE")
	}
	if home == "" {
		return "", os.ErrNotExist
	}
	return filepath.Join(home, ".docker"), nil
}

// dockerConfig is what we read of config.json.
type dockerConfig struct {
	CurrentContext string               `json:"currentContext"`
	Auths          map[string]authEntry `json:"auths"`
	CredsStore     string               `json:"credsStore"`
	CredHelpers    map[string]string    `json:"credHelpers"`
}

type authEntry struct {
	Auth          string `json:"auth"`
	IdentityToken string `json:"identitytoken"`
}

// maxFile bounds the files of Docker's command line.
const maxFile = 4 << 20

func (e *Extension) readDockerConfig() (dockerConfig, error) {
	var config dockerConfig
	dir, err := e.dockerDir()
	if err != nil {
		return config, nil //nolint:nilerr // without a home there is no configuration
	}
	name := filepath.Join(dir, "config.json")
	data, err := readBounded(name)
	if errors.Is(err, os.ErrNotExist) {
		return config, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &config)
	}
	if err != nil {
		// Never its content: it may hold passwords.
		return config, sdk.Invalid("host", "%s can't be read: it is no JSON, or not this user's", name)
	}
	return config, nil
}

func readBounded(name string) ([]byte, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxFile {
		return nil, fmt.Errorf("%s has more than %d bytes", name, maxFile)
	}
	return os.ReadFile(name)
}

// hostOfContext reads a Docker context from its store.
func (e *Extension) hostOfContext(name, source string) (host, error) {
	dir, err := e.dockerDir()
	if err != nil {
		return host{}, sdk.Invalid("context", "there is no home directory to look for the context %q in", clip(name))
	}
	sum := sha256.Sum256([]byte(name))
	id := hex.EncodeToString(sum[:])
	data, err := readBounded(filepath.Join(dir, "contexts", "meta", id, "meta.json"))
	if err != nil {
		return host{}, &sdk.Error{Kind: sdk.ErrInvalid, Path: "context", Message: fmt.Sprintf("there is no Docker context %q", clip(name)), Advice: "`docker context ls` shows those there are"}
	}
	var meta struct {
		Endpoints map[string]struct {
			Host          string `json:"Host"`
			SkipTLSVerify bool   `json:"SkipTLSVerify"`
		} `json:"Endpoints"`
	}
	if err := json.Unmarshal(data, &meta); err != nil || meta.Endpoints["docker"].Host == "" {
		return host{}, sdk.Invalid("context", "the Docker context %q names no engine", clip(name))
	}
	endpoint := meta.Endpoints["docker"]
	h, err := e.hostAt(endpoint.Host, source+" "+name, "", false)
	if err != nil {
		return host{}, err
	}
	tls := filepath.Join(dir, "contexts", "tls", id, "docker")
	if _, err := os.Stat(tls); err == nil {
		h.ca, h.cert, h.key = present(tls, "ca.pem"), present(tls, "cert.pem"), present(tls, "key.pem")
		h.skipVerify = endpoint.SkipTLSVerify
	}
	return h, nil
}

// present returns the path of a file that is there.
func present(dir, name string) string {
	path := filepath.Join(dir, name)
	if _, err := os.Stat(path); err != nil {
		return ""
	}
	return path
}

// desktop tells the socket that Docker Desktop and its like have on this
// machine, while their engine is in a virtual machine with one of its own.
func desktop(socket string) bool {
	return runtime.GOOS == "darwin" || runtime.GOOS == "windows" || filepath.Base(filepath.Dir(filepath.Dir(socket))) == ".docker"
}
