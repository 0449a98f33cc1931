//! Just enough JSON for config.json and safetensors headers: every error is a message, depth is bounded.
use std::collections::HashMap;

#[derive(Debug)]
pub enum Json {
    Null,
    Bool,
    Number(f64),
    Text(String),
    List(Vec<Json>),
    Object(HashMap<String, Json>),
}

impl Json {
    pub fn parse(text: &str) -> Result<Json, String> {
        let mut parser = Parser { bytes: text.as_bytes(), at: 0 };
        let value = parser.value(0)?;
        parser.space();
        if parser.at != parser.bytes.len() {
            return Err(format!("something follows the value at {}", parser.at));
        }
        Ok(value)
    }

    pub fn get(&self, key: &str) -> Option<&Json> {
        match self {
            Json::Object(fields) => fields.get(key),
            _ => None,
        }
    }

    pub fn number(&self, key: &str) -> Result<f64, String> {
        match self.get(key) {
            Some(Json::Number(n)) => Ok(*n),
            other => Err(format!("{key}: a number is wanted, not {other:?}")),
        }
    }
}

struct Parser<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Parser<'_> {
    fn space(&mut self) {
        while matches!(self.bytes.get(self.at), Some(b' ' | b'\n' | b'\r' | b'\t')) {
            self.at += 1;
        }
    }

    fn take(&mut self, byte: u8) -> Result<(), String> {
        self.space();
        if self.bytes.get(self.at) != Some(&byte) {
            return Err(format!("'{}' is wanted at {}", byte as char, self.at));
        }
        self.at += 1;
        Ok(())
    }

    /// True, and taken, if `byte` is next.
    fn next_is(&mut self, byte: u8) -> bool {
        self.take(byte).is_ok()
    }

    fn value(&mut self, depth: usize) -> Result<Json, String> {
        if depth > 16 {
            return Err("nested too deeply".into());
        }
        self.space();
        match self.bytes.get(self.at) {
            Some(b'{') => {
                self.at += 1;
                let mut fields = HashMap::new();
                while !self.next_is(b'}') {
                    if !fields.is_empty() {
                        self.take(b',')?;
                    }
                    self.space();
                    let name = self.text()?;
                    self.take(b':')?;
                    fields.insert(name, self.value(depth + 1)?);
                }
                Ok(Json::Object(fields))
            }
            Some(b'[') => {
                self.at += 1;
                let mut items = Vec::new();
                while !self.next_is(b']') {
                    if !items.is_empty() {
                        self.take(b',')?;
                    }
                    items.push(self.value(depth + 1)?);
                }
                Ok(Json::List(items))
            }
            Some(b'"') => Ok(Json::Text(self.text()?)),
            _ => self.word(),
        }
    }

    fn text(&mut self) -> Result<String, String> {
        self.take(b'"')?;
        let begin = self.at;
        loop {
            match self.bytes.get(self.at) {
                None => return Err("a text does not end".into()),
                Some(b'\\') => return Err(format!("escapes are not read (at {})", self.at)),
                Some(b'"') => break,
                Some(_) => self.at += 1,
            }
        }
        self.at += 1;
        String::from_utf8(self.bytes[begin..self.at - 1].to_vec()).map_err(|e| e.to_string())
    }

    fn word(&mut self) -> Result<Json, String> {
        let begin = self.at;
        while self.bytes.get(self.at).map_or(false, |b| !b",]} \n\r\t".contains(b)) {
            self.at += 1;
        }
        let word = std::str::from_utf8(&self.bytes[begin..self.at]).map_err(|e| e.to_string())?;
        match word {
            "null" => Ok(Json::Null),
            "true" | "false" => Ok(Json::Bool),
            _ => word.parse().map(Json::Number).map_err(|_| format!("what is '{word}'?")),
        }
    }
}
