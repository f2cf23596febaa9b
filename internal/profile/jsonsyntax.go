// Copyright (c) The sandboxer authors
// SPDX-License-Identifier: MPL-2.0

package profile

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"sort"
	"strconv"
	"strings"
)

// readJSON reads a JSON document into a tree.
func readJSON(b *builder, content []byte) *value {
	r := jsonReader{builder: b, content: content, decoder: json.NewDecoder(bytes.NewReader(content))}
	r.decoder.UseNumber()
	for i, c := range content {
		if c == '\n' {
			r.lines = append(r.lines, i)
		}
	}
	root := r.value(1)
	if root == nil {
		return nil
	}
	if token, at, err := r.next(); !errors.Is(err, io.EOF) {
		b.add(at, "", "the document goes on after its end (%v)", cmpErr(token, err))
		return nil
	}
	return root
}

type jsonReader struct {
	*builder
	content []byte
	decoder *json.Decoder
	lines   []int // offsets of the line ends
}

// next returns the next token and where it begins.
func (r *jsonReader) next() (json.Token, place, error) {
	start := int(r.decoder.InputOffset())
	for start < len(r.content) && strings.IndexByte(" \t\r\n,:", r.content[start]) >= 0 {
		start++
	}
	token, err := r.decoder.Token()
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) {
		// The decoder's own offset may be that of the space before.
		start = max(int(syntax.Offset)-1, start)
	}
	return token, r.place(start), err
}

func (r *jsonReader) place(offset int) place {
	line := sort.SearchInts(r.lines, offset)
	begin := 0
	if line > 0 {
		begin = r.lines[line-1] + 1
	}
	return place{line: line + 1, column: offset - begin + 1}
}

// value reads one value; nil means that a fault has been reported.
func (r *jsonReader) value(depth int) *value {
	token, at, err := r.next()
	if err != nil {
		r.fail(at, err)
		return nil
	}
	return r.from(token, at, depth)
}

func (r *jsonReader) fail(at place, err error) {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		r.add(at, "", "the document ends too early")
		return
	}
	r.add(at, "", "not valid JSON: %s", err)
}

func (r *jsonReader) from(token json.Token, at place, depth int) *value {
	if !r.grow(at, depth) {
		return nil
	}
	switch t := token.(type) {
	case json.Delim:
		if t == '{' {
			return r.object(at, depth)
		}
		return r.array(at, depth)
	case string:
		return &value{kind: kindString, at: at, text: t}
	case json.Number:
		return numberOf(t.String(), at)
	case bool:
		return &value{kind: kindBool, at: at, truth: t, text: strconv.FormatBool(t)}
	}
	return &value{kind: kindNull, at: at, text: "null"}
}

func (r *jsonReader) object(at place, depth int) *value {
	object := &value{kind: kindObject, at: at}
	seen := map[string]place{}
	for {
		token, at, err := r.next()
		if err != nil {
			r.fail(at, err)
			return nil
		}
		if _, end := token.(json.Delim); end {
			return object
		}
		// The decoder gives nothing but strings in the place of a key.
		key, _ := token.(string)
		element := r.value(depth + 1)
		if element == nil {
			return nil
		}
		r.put(object, seen, member{key: key, at: at, value: element})
	}
}

func (r *jsonReader) array(at place, depth int) *value {
	array := &value{kind: kindList, at: at}
	for {
		token, at, err := r.next()
		if err != nil {
			r.fail(at, err)
			return nil
		}
		if delim, is := token.(json.Delim); is && delim == ']' {
			return array
		}
		element := r.from(token, at, depth+1)
		if element == nil {
			return nil
		}
		array.list = append(array.list, element)
	}
}

// numberOf reads a number as all three syntaxes write it. A whole number is
// an integer however it is written, as in JSON Schema.
func numberOf(text string, at place) *value {
	v := &value{kind: kindNumber, at: at, text: text}
	v.number, _ = strconv.ParseFloat(text, 64)
	if i, err := strconv.ParseInt(text, 10, 64); err == nil {
		v.kind, v.integer = kindInteger, i
	} else if i := int64(v.number); v.number > -1e15 && v.number < 1e15 && float64(i) == v.number {
		v.kind, v.integer = kindInteger, i
	}
	return v
}

func cmpErr(token json.Token, err error) any {
	if err != nil {
		return err
	}
	return token
}
