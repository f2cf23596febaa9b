// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

//go:build linux

// Package registry reads images from a registry. Credentials come from the
// Docker configuration and its credential helpers, go to the registry alone,
// and are kept nowhere.
//
// What a registry sends is hostile: documents are bounded, and every blob has
// the size and digest that the manifest says or is refused.
package registry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

// The kinds of failure that a caller tells apart.
var (
	ErrReference    = errors.New("it is no image reference")
	ErrUnreachable  = errors.New("the registry can't be reached")
	ErrUnauthorized = errors.New("the registry wants other credentials (`docker login` puts them where they are looked for)")
	ErrNotFound     = errors.New("the registry has no such image")
)

const (
	maxDocument = 8 << 20 // bytes of a manifest, an index, a configuration or a token
	maxLayers   = 512
	// silence is how long a registry may say nothing before it has failed.
	silence = 60 * time.Second
	retries = 3
)

// Image is an image of a registry, pinned to a digest.
type Image struct {
	Ref    string // with the digest
	Digest string // of the manifest for this machine
	Layers []Layer
	Config []byte

	image v1.Image
}

// Layer is one layer.
type Layer struct {
	Digest string // hex
	Size   int64
}

// Pinned returns the digest that a reference names, and the repository, or
// nothing where it names a tag.
func Pinned(ref string) (repository, digest string, err error) {
	parsed, err := name.ParseReference(ref)
	if err != nil {
		return "", "", fmt.Errorf("%w: %w", ErrReference, err)
	}
	if d, ok := parsed.(name.Digest); ok {
		return d.Context().Name(), d.DigestStr(), nil
	}
	return parsed.Context().Name(), "", nil
}

// Resolve asks a registry what a reference stands for on this machine.
func Resolve(ctx context.Context, ref string) (*Image, error) {
	parsed, err := name.ParseReference(ref)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrReference, err)
	}
	base := &http.Transport{
		Proxy: http.ProxyFromEnvironment, ForceAttemptHTTP2: true, TLSHandshakeTimeout: silence, ResponseHeaderTimeout: silence,
		IdleConnTimeout: time.Minute,
	}
	options := []remote.Option{
		remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain),
		remote.WithPlatform(v1.Platform{OS: "linux", Architecture: runtime.GOARCH}),
		remote.WithTransport(bounded{base}), remote.WithUserAgent("sandboxer"),
		remote.WithRetryBackoff(remote.Backoff{Duration: 200 * time.Millisecond, Factor: 3, Jitter: 0.1, Steps: retries}),
	}
	image, err := remote.Image(parsed, options...)
	if err != nil {
		return nil, classify(err)
	}
	return describe(parsed, image)
}

func describe(parsed name.Reference, image v1.Image) (*Image, error) {
	digest, err := image.Digest()
	if err != nil {
		return nil, classify(err)
	}
	manifest, err := image.Manifest()
	if err != nil {
		return nil, classify(err)
	}
	if len(manifest.Layers) > maxLayers {
		return nil, fmt.Errorf("the image has %d layers, and %d are the most", len(manifest.Layers), maxLayers)
	}
	config, err := image.RawConfigFile()
	if err != nil {
		return nil, classify(err)
	}
	var platform struct {
		OS string `json:"os"`
	}
	if err := json.Unmarshal(config, &platform); err != nil {
		return nil, fmt.Errorf("the image's configuration: %w", err)
	}
	if platform.OS != "" && platform.OS != "linux" {
		return nil, fmt.Errorf("the image is for %.40q, not for linux", platform.OS)
	}
	i := &Image{Ref: parsed.Context().Name() + "@" + digest.String(), Digest: digest.String(), Config: config, image: image}
	for _, l := range manifest.Layers {
		if l.Digest.Algorithm != "sha256" || len(l.URLs) > 0 {
			return nil, fmt.Errorf("layer %s is of a kind that is not taken", l.Digest)
		}
		i.Layers = append(i.Layers, Layer{Digest: l.Digest.Hex, Size: l.Size})
	}
	return i, nil
}

// Open returns a layer's content as it was pushed. Its end is an error where
// size or digest are not what the manifest says.
func (i *Image) Open(digest string) (io.ReadCloser, error) {
	layer, err := i.image.LayerByDigest(v1.Hash{Algorithm: "sha256", Hex: digest})
	if err != nil {
		return nil, classify(err)
	}
	r, err := layer.Compressed()
	if err != nil {
		return nil, classify(err)
	}
	return r, nil
}

// classify tells what a failure is about. The registry's own words are bounded
// by what is read of it.
func classify(err error) error {
	var refusal *transport.Error
	var network net.Error
	var dns *net.DNSError
	switch {
	case errors.As(err, &refusal):
		switch refusal.StatusCode {
		case http.StatusUnauthorized, http.StatusForbidden:
			return fmt.Errorf("%w: %w", ErrUnauthorized, brief{err})
		case http.StatusNotFound:
			return fmt.Errorf("%w: %w", ErrNotFound, brief{err})
		}
		if refusal.StatusCode >= 500 || refusal.StatusCode == http.StatusTooManyRequests {
			return fmt.Errorf("%w: %w", ErrUnreachable, brief{err})
		}
	case errors.As(err, &dns), errors.As(err, &network):
		return fmt.Errorf("%w: %w", ErrUnreachable, brief{err})
	}
	return brief{err}
}

// brief bounds an error's text.
type brief struct{ err error }

func (b brief) Unwrap() error { return b.err }
func (b brief) Error() string {
	text := strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, b.err.Error())
	if len(text) > 512 {
		text = text[:512] + "…"
	}
	return text
}

// bounded ends documents that are too large. Blobs are bounded by their size
// in the manifest.
type bounded struct{ http.RoundTripper }

func (b bounded) RoundTrip(request *http.Request) (*http.Response, error) {
	response, err := b.RoundTripper.RoundTrip(request)
	if err != nil || strings.Contains(request.URL.Path, "/blobs/") {
		return response, err
	}
	if request.Method != http.MethodHead && response.ContentLength > maxDocument {
		response.Body.Close()
		return nil, tooLarge(request)
	}
	response.Body = &document{ReadCloser: response.Body, request: request, left: maxDocument}
	return response, nil
}

func tooLarge(request *http.Request) error {
	return fmt.Errorf("the registry's answer to %s is larger than %d bytes", request.URL.Path, maxDocument)
}

type document struct {
	io.ReadCloser
	request *http.Request
	left    int64
}

func (d *document) Read(p []byte) (int, error) {
	n, err := d.ReadCloser.Read(p)
	if d.left -= int64(n); d.left < 0 {
		return 0, tooLarge(d.request)
	}
	return n, err
}
