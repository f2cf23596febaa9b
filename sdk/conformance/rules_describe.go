// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package conformance

// Describe, Configure and Probe, and whether the abilities are those of the
// document.

import (
	"encoding/json"
	"errors"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/sand-boxer/terraform-provider-sandboxer/sdk"
)

func describeRules() []Rule {
	return []Rule{
		{ID: "describe/static", Title: "Describe answers before Configure, and the same each time", try: describeStatic},
		{ID: "describe/complete", Title: "the document names every feature, with a class and a reason", try: describeComplete},
		{ID: "describe/probe", Title: "the document for this machine differs from the static one only where that says so", try: describeProbe},
		{ID: "configure/unknown_key", Title: "an unknown key of the configuration is refused at its path", try: configureUnknownKey},
		{ID: "configure/not_an_object", Title: "a configuration that is no JSON object is refused", try: configureNotAnObject},
	}
}

var (
	extensionName = regexp.MustCompile(`^[a-z][a-z0-9-]*$`)
	version       = regexp.MustCompile(`^v?\d+\.\d+\.\d+`)
)

func (c *check) fresh() sdk.Extension {
	ext, err := c.kit.instance(c.ctx)
	c.need(err, "get an instance of the extension")
	return ext
}

func describeStatic(c *check) {
	ext := c.fresh()
	first, err := ext.Describe(c.ctx, sdk.DescribeOptions{})
	c.failIf(err != nil, "Describe of an instance that is not configured: %s", err)
	again, err := ext.Describe(c.ctx, sdk.DescribeOptions{})
	c.failIf(err != nil, "the second Describe: %s", err)
	configured, err := c.kit.b.Describe(c.ctx, sdk.DescribeOptions{})
	c.failIf(err != nil, "Describe of a configured instance: %s", err)
	c.failIf(!reflect.DeepEqual(first, again), "two answers differ: %+v and %+v", first, again)
	c.failIf(!reflect.DeepEqual(first, configured), "the answer of a configured instance differs: %+v and %+v", first, configured)
	c.failIf(!extensionName.MatchString(first.Name), "%q is not the name of an extension", first.Name)
	c.failIf(!version.MatchString(first.Version), "%q is not a version", first.Version)
	c.failIf(first.Summary == "" || strings.Contains(first.Summary, "\n"), "the summary is not one line: %q", first.Summary)
	for _, key := range first.ConfigSchema {
		known := slices.Contains([]string{"string", "bool", "number", "list", "map"}, key.Type)
		c.failIf(key.Name == "" || key.Description == "" || !known, "a key of the configuration is not described: %+v", key)
	}
	c.note("%s %s, %d keys of configuration", first.Name, first.Version, len(first.ConfigSchema))
}

// incomplete returns what a document lacks.
func incomplete(document sdk.Capabilities) (faults []string) {
	for _, feature := range sdk.Features() {
		g, ok := document[feature]
		switch {
		case !ok:
			faults = append(faults, string(feature)+" is missing")
		case !g.Class.Valid():
			faults = append(faults, string(feature)+" has the class "+string(g.Class))
		case g.Reason == "" || strings.Contains(g.Reason, "\n"):
			faults = append(faults, string(feature)+" has no reason of one line")
		}
	}
	for feature := range document {
		if !slices.Contains(sdk.Features(), feature) {
			faults = append(faults, string(feature)+" is no feature")
		}
	}
	return faults
}

func describeComplete(c *check) {
	faults := incomplete(c.kit.report.Document)
	c.failIf(len(faults) > 0, "%s", strings.Join(faults, "; "))
	c.note("%d features", len(c.kit.report.Document))
}

func describeProbe(c *check) {
	for _, feature := range sdk.Features() {
		static, here := c.kit.report.Document.Of(feature), c.kit.report.Probed.Of(feature)
		c.failIf(!here.Class.Valid(), "%s has the class %q here", feature, here.Class)
		c.failIf(here.Class != static.Class && !static.DependsOnMachine, "%s is %s in the static document and %s here", feature, static.Class, here.Class)
		// The static class is the weakest that it can have.
		c.failIf(!here.Class.Satisfies(static.Class), "%s is %s here, which is weaker than %s", feature, here.Class, static.Class)
	}
}

func configureUnknownKey(c *check) {
	const key = "conformance_unknown_key"
	config := map[string]any{}
	if len(c.kit.suite.Config) > 0 {
		c.need(json.Unmarshal(c.kit.suite.Config, &config), "read the suite's configuration")
	}
	config[key] = "x"
	encoded, err := json.Marshal(config)
	c.need(err, "write a configuration")
	_, err = c.fresh().Configure(c.ctx, sdk.ConfigureOptions{Backend: "conformance", Fleet: c.kit.suite.Fleet, Config: encoded})
	c.is(err, "an unknown key", sdk.ErrInvalid)
	c.atPath(err, key)
}

// atPath fails unless an error names the attribute that is to blame.
func (c *check) atPath(err error, part string) {
	var said *sdk.Error
	if errors.As(err, &said) && strings.Contains(said.Path, part) {
		return
	}
	path := ""
	if said != nil {
		path = said.Path
	}
	c.fail("the error's path is %q, and should name %q: %s", path, part, err)
}

func configureNotAnObject(c *check) {
	for _, config := range []string{`["a"]`, `"a"`, `{`} {
		_, err := c.fresh().Configure(c.ctx, sdk.ConfigureOptions{Backend: "conformance", Fleet: c.kit.suite.Fleet, Config: []byte(config)})
		c.is(err, "the configuration "+config, sdk.ErrInvalid)
	}
}

// abilityRules hold the interfaces against the document: neither may say more
// than the other.
func abilityRules() []Rule {
	rule := func(name string, implemented func(ext sdk.Extension) bool, features ...sdk.Feature) Rule {
		return Rule{
			ID: "abilities/" + name, Title: "the interface for " + name + " is there if the document says so, and only then", about: features,
			try: func(c *check) {
				claimed := ""
				for _, feature := range features {
					if c.claims(feature) {
						claimed = string(feature)
					}
				}
				switch has := implemented(c.kit.a); {
				case has && claimed == "":
					c.fail("an undeclared gap: the interface is implemented, and the document says %s is unsupported", features[0])
				case !has && claimed != "":
					c.fail("the document claims %s, and the interface is not implemented", claimed)
				default:
					c.note("implemented: %v", has)
				}
			},
		}
	}
	return []Rule{
		rule("exec", implements[sdk.Execer], sdk.FeatureExec),
		rule("files", implements[sdk.Copier], sdk.FeatureFiles),
		rule("logs", implements[sdk.Logger], sdk.FeatureLogs),
		rule("pause", implements[sdk.Pauser], sdk.FeaturePause),
		rule("snapshots", implements[sdk.Snapshotter], sdk.FeatureFilesystemSnapshot, sdk.FeatureMemorySnapshot),
		rule("portable", implements[sdk.PortableSnapshotter], sdk.FeaturePortableSnapshot),
		rule("inspect", implements[sdk.Inspector], sdk.FeatureCredentialIsolation),
	}
}

func implements[T any](ext sdk.Extension) bool { _, ok := sdk.As[T](ext); return ok }

// ability returns an interface of the extension. When it is missing, the rule
// about the ability says so, and the others can't be tried.
func ability[T any](c *check, ext sdk.Extension) T {
	able, ok := sdk.As[T](ext)
	if !ok {
		c.cannot("it is claimed and not implemented: see abilities/")
	}
	return able
}
