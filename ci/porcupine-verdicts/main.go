// Judges recorded histories with porcupine, to compare its verdicts with those of `quintet check`.
//
//	published DIR    histories published with porcupine ──► our format on standard output
//	judge FILE       our format ──► "NAME linearizable|impossible|unknown" per history
//
// The specification below is written apart from Quintet's, on purpose: what is compared is the
// whole judgement, not only the search.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

type line struct {
	Version     *int       `json:"quintet_history,omitempty"`
	Name        string     `json:"name,omitempty"`
	Client      any        `json:"client,omitempty"`
	Invoked     int64      `json:"invoked"`
	Completed   *int64     `json:"completed,omitempty"`
	Command     []string   `json:"command,omitempty"`
	Transaction [][]string `json:"transaction,omitempty"`
	Reply       any        `json:"reply"`
	Outcome     string     `json:"outcome,omitempty"`
}

type input struct {
	commands    [][]string
	transaction bool
}

type output struct {
	unknown bool
	reply   any
}

// A key's value: "s" and a text, or "l" and elements that each end in a comma.
type state map[string]string

func text(value string, there bool) any {
	if !there {
		return nil
	}
	return value[1:]
}

func number(n int) any { return float64(n) }

func yes(b bool) any {
	if b {
		return 1.0
	}
	return 0.0
}

var wrongType = map[string]any{"error": "WRONGTYPE"}

func elements(value string) []string {
	if len(value) < 2 {
		return nil
	}
	return strings.Split(strings.TrimSuffix(value[1:], ","), ",")
}

func list(all []string) string { return "l" + strings.Join(all, ",") + "," }

func carryOut(keys state, words []string) any {
	name, key := words[0], words[1]
	value, there := keys[key]
	isText := !there || value[0] == 's'
	isList := !there || value[0] == 'l'
	switch name {
	case "GET":
		if !isText {
			return wrongType
		}
		return text(value, there)
	case "SET":
		keys[key] = "s" + words[2]
		return "OK"
	case "SETNX":
		if !there {
			keys[key] = "s" + words[2]
		}
		return yes(!there)
	case "GETSET":
		if !isText {
			return wrongType
		}
		keys[key] = "s" + words[2]
		return text(value, there)
	case "CAS":
		if !isText {
			return wrongType
		}
		holds := there && value[1:] == words[2]
		if holds {
			keys[key] = "s" + words[3]
		}
		return yes(holds)
	case "APPEND":
		if !isText {
			return wrongType
		}
		if !there {
			value = "s"
		}
		keys[key] = value + words[2]
		return number(len(keys[key]) - 1)
	case "INCR":
		if !isText {
			return wrongType
		}
		before := 0
		if there {
			parsed, err := strconv.Atoi(value[1:])
			if err != nil {
				return map[string]any{"error": "ERR value is not an integer or out of range"}
			}
			before = parsed
		}
		keys[key] = "s" + strconv.Itoa(before+1)
		return number(before + 1)
	case "DEL":
		delete(keys, key)
		return yes(there)
	case "EXISTS":
		return yes(there)
	case "MGET":
		all := []any{}
		for _, key := range words[1:] {
			value, there := keys[key]
			if there && value[0] != 's' {
				all = append(all, nil)
			} else {
				all = append(all, text(value, there))
			}
		}
		return all
	case "MSET":
		for at := 1; at < len(words); at += 2 {
			keys[words[at]] = "s" + words[at+1]
		}
		return "OK"
	case "RPUSH":
		if !isList {
			return wrongType
		}
		all := append(elements(value), words[2])
		keys[key] = list(all)
		return number(len(all))
	case "LPOP":
		if !isList {
			return wrongType
		}
		all := elements(value)
		if len(all) == 0 {
			return nil
		}
		if len(all) == 1 {
			delete(keys, key)
		} else {
			keys[key] = list(all[1:])
		}
		return all[0]
	case "LRANGE":
		if !isList {
			return wrongType
		}
		all := []any{}
		for _, element := range elements(value) {
			all = append(all, element)
		}
		return all
	}
	panic("no command " + name)
}

func same(ours, theirs any) bool {
	switch ours := ours.(type) {
	case []any:
		theirs, ok := theirs.([]any)
		if !ok || len(ours) != len(theirs) {
			return false
		}
		for at := range ours {
			if !same(ours[at], theirs[at]) {
				return false
			}
		}
		return true
	case map[string]any:
		theirs, ok := theirs.(map[string]any)
		if !ok {
			return false
		}
		first := func(m map[string]any) string { return strings.SplitN(m["error"].(string), " ", 2)[0] }
		return first(ours) == first(theirs)
	default:
		if _, ok := theirs.([]any); ok {
			return false
		}
		if _, ok := theirs.(map[string]any); ok {
			return false
		}
		return ours == theirs
	}
}

func write(keys state) string {
	names := make([]string, 0, len(keys))
	for name := range keys {
		names = append(names, name)
	}
	sort.Strings(names)
	var out strings.Builder
	for _, name := range names {
		fmt.Fprintf(&out, "%d:%s%d:%s", len(name), name, len(keys[name]), keys[name])
	}
	return out.String()
}

func read(text string) state {
	keys := state{}
	next := func() string {
		colon := strings.IndexByte(text, ':')
		length, _ := strconv.Atoi(text[:colon])
		word := text[colon+1 : colon+1+length]
		text = text[colon+1+length:]
		return word
	}
	for text != "" {
		name := next()
		keys[name] = next()
	}
	return keys
}

func step(before, in, out any) (bool, any) {
	keys := read(before.(string))
	asked, got := in.(input), out.(output)
	var answers []any
	for _, command := range asked.commands {
		answers = append(answers, carryOut(keys, command))
	}
	after := write(keys)
	if got.unknown {
		return true, after
	}
	if asked.transaction {
		return same(answers, got.reply), after
	}
	return same(answers[0], got.reply), after
}

func touched(in input) []string {
	var keys []string
	for _, command := range in.commands {
		switch command[0] {
		case "MGET":
			keys = append(keys, command[1:]...)
		case "MSET":
			for at := 1; at < len(command); at += 2 {
				keys = append(keys, command[at])
			}
		default:
			keys = append(keys, command[1])
		}
	}
	return keys
}

// Keys that operations join belong together.
func partition(history []porcupine.Operation) [][]porcupine.Operation {
	above := map[string]string{}
	var root func(string) string
	root = func(key string) string {
		if next, ok := above[key]; ok && next != key {
			above[key] = root(next)
			return above[key]
		}
		above[key] = key
		return key
	}
	for _, operation := range history {
		keys := touched(operation.Input.(input))
		for _, key := range keys[1:] {
			above[root(key)] = root(keys[0])
		}
	}
	groups := map[string][]porcupine.Operation{}
	var order []string
	for _, operation := range history {
		key := root(touched(operation.Input.(input))[0])
		if groups[key] == nil {
			order = append(order, key)
		}
		groups[key] = append(groups[key], operation)
	}
	var all [][]porcupine.Operation
	for _, key := range order {
		all = append(all, groups[key])
	}
	return all
}

var model = porcupine.Model{
	Partition: partition,
	Init:      func() any { return "" },
	Step:      step,
	Equal:     func(a, b any) bool { return a == b },
}

const never = int64(1) << 62

func operation(l line) (porcupine.Operation, bool) {
	asked := input{commands: l.Transaction, transaction: l.Transaction != nil}
	if l.Command != nil {
		asked.commands = [][]string{l.Command}
	}
	if l.Outcome == "failed" {
		return porcupine.Operation{}, false
	}
	done := porcupine.Operation{Input: asked, Call: l.Invoked, Return: never, Output: output{unknown: true}}
	if l.Completed != nil && l.Outcome != "unknown" {
		done.Return, done.Output = *l.Completed, output{unknown: l.Outcome == "done", reply: l.Reply}
	}
	return done, true
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func judge(path string, timeout time.Duration) {
	file, err := os.Open(path)
	fail(err)
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 64<<20)
	name := ""
	var history []porcupine.Operation
	finish := func() {
		if name == "" {
			return
		}
		verdict := map[porcupine.CheckResult]string{
			porcupine.Ok: "linearizable", porcupine.Illegal: "impossible", porcupine.Unknown: "unknown",
		}[porcupine.CheckOperationsTimeout(model, history, timeout)]
		fmt.Println(name, verdict)
		history = nil
	}
	for lines.Scan() {
		var l line
		fail(json.Unmarshal(lines.Bytes(), &l))
		if l.Version != nil {
			finish()
			name = l.Name
			continue
		}
		if done, happened := operation(l); happened {
			done.ClientId = len(history)
			history = append(history, done)
		}
	}
	fail(lines.Err())
	finish()
}

func head(name string) {
	text, err := json.Marshal(map[string]any{"quintet_history": 1, "name": name})
	fail(err)
	fmt.Println(string(text))
}

// One history of a log: how a call and an answer look there.
type format struct {
	invoke, answer *regexp.Regexp
	call           func([]string) []string
	// The reply; and an outcome if there is none.
	reply func([]string) (any, string)
}

func convert(path, name string, f format) {
	file, err := os.Open(path)
	fail(err)
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 64<<20)
	head(name)
	open := map[string]*line{}
	var all []*line
	now := int64(0)
	for lines.Scan() {
		now++
		if words := f.invoke.FindStringSubmatch(lines.Text()); words != nil {
			one := &line{Client: words[1], Invoked: now, Command: f.call(words)}
			open[words[1]] = one
			all = append(all, one)
		} else if words := f.answer.FindStringSubmatch(lines.Text()); words != nil {
			if one := open[words[1]]; one != nil {
				reply, outcome := f.reply(words)
				if at := now; outcome != "unknown" {
					one.Completed = &at
				}
				one.Reply, one.Outcome = reply, outcome
				delete(open, words[1])
			}
		}
	}
	fail(lines.Err())
	for _, one := range all {
		if one.Completed == nil {
			one.Outcome = "unknown"
		}
		text, err := json.Marshal(one)
		fail(err)
		if one.Outcome != "" {
			text = []byte(strings.Replace(string(text), `"reply":null,`, "", 1))
		}
		fmt.Println(string(text))
	}
}

// A register that is read, written, and compared and set.
var jepsen = format{
	invoke: regexp.MustCompile(`^INFO\s+jepsen\.util\s+-\s+(\d+)\s+:invoke\s+:(read|write|cas)\s+(.*)$`),
	answer: regexp.MustCompile(`^INFO\s+jepsen\.util\s+-\s+(\d+)\s+:(ok|fail)\s+:(read|write|cas)\s+(.*)$`),
	call: func(words []string) []string {
		switch words[2] {
		case "read":
			return []string{"GET", "r"}
		case "write":
			return []string{"SET", "r", words[3]}
		}
		pair := strings.Fields(strings.Trim(words[3], "[]"))
		return []string{"CAS", "r", pair[0], pair[1]}
	},
	reply: func(words []string) (any, string) {
		switch {
		case words[4] == ":timed-out" || words[3] == "write" && words[2] == "fail":
			return nil, "unknown"
		case words[3] == "cas":
			return yes(words[2] == "ok"), ""
		case words[3] == "write":
			return "OK", ""
		case words[4] == "nil":
			return nil, ""
		}
		return words[4], ""
	},
}

var quoted = `"((?:[^"\\]|\\.)*)"`

// Keys that are got, put and appended to. An append answers nothing there: it is known to be done,
// and its length is not. A missing key reads as an empty text.
var keyValue = format{
	invoke: regexp.MustCompile(`^{:process (\d+), :type :invoke, :f :(get|put|append), :key ` + quoted + `, :value (?:nil|` + quoted + `)}$`),
	answer: regexp.MustCompile(`^{:process (\d+), :type :ok, :f :(get|put|append), :key ` + quoted + `, :value (?:nil|` + quoted + `)}$`),
	call: func(words []string) []string {
		switch words[2] {
		case "get":
			return []string{"GET", words[3]}
		case "put":
			return []string{"SET", words[3], words[4]}
		}
		return []string{"APPEND", words[3], words[4]}
	},
	reply: func(words []string) (any, string) {
		switch {
		case words[2] == "put":
			return "OK", ""
		case words[2] == "append":
			return nil, "done"
		case words[4] == "":
			return nil, ""
		}
		return words[4], ""
	},
}

func main() {
	switch {
	case len(os.Args) == 3 && os.Args[1] == "published":
		published(os.Args[2])
	case len(os.Args) == 3 && os.Args[1] == "check":
		judge(os.Args[2], 60*time.Second)
	default:
		fmt.Fprintln(os.Stderr, "usage: porcupine published DIR | judge FILE")
		os.Exit(2)
	}
}

func published(directory string) {
	for _, kind := range []struct {
		files  string
		format format
	}{{"jepsen/*.log", jepsen}, {"kv/*.txt", keyValue}} {
		paths, err := filepath.Glob(filepath.Join(directory, kind.files))
		fail(err)
		for _, path := range paths {
			convert(path, filepath.Base(path), kind.format)
		}
	}
}
