//! The elements of a card, as the page's data has them.
//!
//! In JSON an element is `["p", {"class": "muted"}, ["text", ...]]` and a text is a string. The
//! script makes elements and text nodes of them (`web/src/widgets/card.ts`), never markup. It
//! knows the attributes that it may set, and the properties that have a behaviour:
//! [`Element::opens`], [`Element::colored`], [`Element::wide`], [`Element::indented`],
//! [`Element::shaped`] and [`Element::holds`].

use std::ops::Range;

use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};

use crate::terminal::escape::escape_text;

/// An element or a text.
#[derive(Clone, Debug)]
pub(in crate::page) enum Node {
    Element(Element),
    Text(String),
}

impl Serialize for Node {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Element(element) => element.serialize(serializer),
            Self::Text(text) => text.serialize(serializer),
        }
    }
}

/// An element with its properties and its content.
#[derive(Clone, Debug)]
pub(in crate::page) struct Element {
    tag: &'static str,
    properties: Map<String, Value>,
    content: Vec<Node>,
}

impl Serialize for Element {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (self.tag, &self.properties, &self.content).serialize(serializer)
    }
}

/// The background of an element. The script knows the colours of both themes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Color {
    /// The colour of a call site by its index in the trace; grey for `None`.
    Site(Option<usize>),
    /// The colour of a cause of unused reserved memory, or of another part of the GPU's memory.
    Part(&'static str),
    /// A variable of the style sheet.
    Theme(&'static str),
}

/// The empty element of a kind.
pub(super) fn element(tag: &'static str) -> Element {
    Element { tag, properties: Map::new(), content: Vec::new() }
}

impl Element {
    /// Sets an attribute, or a property that the script knows.
    pub(super) fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.properties.insert(name.to_owned(), value.into());
        self
    }

    /// Sets the classes; an empty text sets none.
    pub(super) fn class(self, names: &str) -> Self {
        if names.is_empty() { self } else { self.with("class", names) }
    }

    /// Adds text, elements, or lists and options of them.
    pub(super) fn add(mut self, content: impl Content) -> Self {
        content.add_to(&mut self.content);
        self
    }

    /// A click opens a view, or changes the selection if `view` is `None`. `change` has fields of
    /// the selection.
    pub(super) fn opens(self, view: Option<&str>, change: &Value) -> Self {
        self.with("go", json!([view, change]))
    }

    pub(super) fn colored(self, color: Color) -> Self {
        match color {
            Color::Site(index) => self.with("site", index),
            Color::Part(name) => self.with("part", name),
            Color::Theme(name) => self.with("theme", name),
        }
    }

    /// The width as a share of the parent's width.
    pub(super) fn wide(self, share: f64) -> Self {
        self.with("width", round_share(share))
    }

    /// The space to the left as a share of the parent's width; some pixels remain for the element.
    pub(super) fn indented(self, share: f64) -> Self {
        self.with("indent", round_share(share))
    }

    /// The shape of an area: its height in equal spans from left to right, as shares of the whole.
    pub(super) fn shaped(self, heights: impl Iterator<Item = f64>) -> Self {
        self.with("heights", heights.map(round_share).collect::<Vec<_>>())
    }

    /// The view draws a chart into this element.
    pub(super) fn holds(self, chart: Value) -> Self {
        self.with("chart", chart)
    }
}

/// Five decimals are finer than a pixel.
fn round_share(share: f64) -> f64 {
    (share * 1e5).round() / 1e5
}

/// What an element may contain.
pub(super) trait Content {
    fn add_to(self, nodes: &mut Vec<Node>);
}

impl Content for Node {
    fn add_to(self, nodes: &mut Vec<Node>) {
        nodes.push(self);
    }
}

impl Content for Element {
    fn add_to(self, nodes: &mut Vec<Node>) {
        nodes.push(Node::Element(self));
    }
}

impl Content for &str {
    fn add_to(self, nodes: &mut Vec<Node>) {
        nodes.push(Node::Text(escape_text(self)));
    }
}

impl Content for String {
    fn add_to(self, nodes: &mut Vec<Node>) {
        self.as_str().add_to(nodes);
    }
}

impl<C: Content> Content for Option<C> {
    fn add_to(self, nodes: &mut Vec<Node>) {
        if let Some(content) = self {
            content.add_to(nodes);
        }
    }
}

impl<C: Content> Content for Vec<C> {
    fn add_to(self, nodes: &mut Vec<Node>) {
        for content in self {
            content.add_to(nodes);
        }
    }
}

/// A square in a colour.
pub(super) fn swatch(color: Color) -> Element {
    element("span").class("swatch").with("aria-hidden", "true").colored(color)
}

/// A list of names and values.
pub(super) fn facts(class: &str, rows: &[(&str, String)]) -> Element {
    rows.iter().fold(element("dl").class(class), |list, (name, value)| {
        list.add(element("dt").add(*name)).add(element("dd").add(value.as_str()))
    })
}

/// A list of one item for each content.
pub(super) fn list<C: Content>(class: &str, items: impl IntoIterator<Item = C>) -> Element {
    items.into_iter().fold(element("ul").class(class), |list, item| list.add(element("li").add(item)))
}

/// A cell of a number.
pub(super) fn number_cell(text: impl Content) -> Element {
    element("td").class("number").add(text)
}

/// The head of a table. `numbers` are the columns that are aligned to the right.
pub(super) fn table_head(names: &[&str], numbers: Range<usize>) -> Element {
    let cells = names.iter().enumerate().map(|(index, name)| {
        let cell =
            if name.is_empty() { element("td") } else { element("th").with("scope", "col").add(*name) };
        if numbers.contains(&index) { cell.class("number") } else { cell }
    });
    element("thead").add(element("tr").add(cells.collect::<Vec<_>>()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn element_is_array_of_tag_properties_and_content() {
        let line =
            element("p").class("muted").add("1 < 2 ").add(element("b").add(Some("x"))).add(None::<String>);
        let json = serde_json::to_string(&line.wide(1.0 / 3.0)).unwrap();
        assert_eq!(json, r#"["p",{"class":"muted","width":0.33333},["1 < 2 ",["b",{},["x"]]]]"#);
    }
}
