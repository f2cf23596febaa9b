// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package docker

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/distribution/reference"
	"github.com/moby/moby/api/pkg/authconfig"
	"github.com/moby/moby/api/types/registry"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

// helperDeadline bounds a credential helper: some ask a person.
const helperDeadline = 30 * time.Second

// dockerHub is the name under which credentials of Docker's own registry are
// kept.
const dockerHub = "https://index.docker.io/v1/"

// registryAuth returns the credentials for an image's registry, as the
// engine's header has them; empty when there are none.
func (e *Extension) registryAuth(ctx context.Context, image string) (string, error) {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return "", sdk.Invalid("image", "%q is neither a reference nor a path", clip(image))
	}
	config, err := e.readDockerConfig()
	if err != nil {
		return "", err
	}
	server := reference.Domain(named)
	if server == "docker.io" {
		server = dockerHub
	}
	auth, err := config.credentials(ctx, server)
	if err != nil || auth == (registry.AuthConfig{}) {
		return "", err
	}
	auth.ServerAddress = server
	encoded, err := authconfig.Encode(auth)
	if err != nil {
		return "", sdk.Invalid("image", "the credentials for %s can't be sent", clip(server))
	}
	return encoded, nil
}

func (c dockerConfig) credentials(ctx context.Context, server string) (registry.AuthConfig, error) {
	helper := c.CredsStore
	if name, ok := c.CredHelpers[strings.TrimPrefix(server, "https://")]; ok {
		helper = name
	}
	if helper != "" {
		return askHelper(ctx, helper, server)
	}
	entry, ok := c.Auths[server]
	if !ok {
		entry, ok = c.Auths["https://"+server]
	}
	if !ok {
		return registry.AuthConfig{}, nil
	}
	auth := registry.AuthConfig{IdentityToken: entry.IdentityToken}
	pair, err := base64.StdEncoding.DecodeString(entry.Auth)
	name, password, found := strings.Cut(string(pair), ":")
	if entry.Auth != "" && (err != nil || !found) {
		return registry.AuthConfig{}, &sdk.Error{Kind: sdk.ErrUnauthenticated, Message: "the entry for " + clip(server) + " in Docker's config.json can't be read", Advice: "`docker login` writes it anew"}
	}
	auth.Username, auth.Password = name, strings.TrimRight(password, "\x00")
	return auth, nil
}

// askHelper asks a credential helper of Docker's command line. What it says
// is never part of an error.
func askHelper(ctx context.Context, name, server string) (registry.AuthConfig, error) {
	if !sdk.IsName(name, 64) {
		return registry.AuthConfig{}, sdk.Invalid("image", "%q is not the name of a credential helper", clip(name))
	}
	ctx, cancel := context.WithTimeout(ctx, helperDeadline)
	defer cancel()
	cmd := exec.CommandContext(ctx, "docker-credential-"+name, "get")
	cmd.Stdin = strings.NewReader(server)
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := cmd.Run(); err != nil {
		if strings.Contains(out.String(), "credentials not found") {
			return registry.AuthConfig{}, nil
		}
		return registry.AuthConfig{}, &sdk.Error{
			Kind: sdk.ErrUnauthenticated, Message: fmt.Sprintf("docker-credential-%s has no credentials for %s", name, clip(server)), Err: err,
			Advice: "see whether `docker pull` works for this user",
		}
	}
	var said struct{ Username, Secret string }
	if err := json.Unmarshal(out.Bytes(), &said); err != nil {
		return registry.AuthConfig{}, sdk.Errorf(sdk.ErrUnauthenticated, "docker-credential-%s answered with something else than credentials", name)
	}
	if said.Username == "<token>" {
		return registry.AuthConfig{IdentityToken: said.Secret}, nil
	}
	return registry.AuthConfig{Username: said.Username, Password: said.Secret}, nil
}
