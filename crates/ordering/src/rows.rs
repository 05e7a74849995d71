//! A small map, sorted by key: one row for each device. Few rows, read often, copied cheaply.

/// Values by key. Keys are devices, so members of a volume bound it.
#[derive(Clone, Debug, Hash, PartialEq, Eq)]
pub struct Rows<K, T>(Vec<(K, T)>);

impl<K, T> Default for Rows<K, T> {
    fn default() -> Self {
        Rows(Vec::new())
    }
}

impl<K: Copy + Ord, T> Rows<K, T> {
    /// The value of a key.
    pub fn get(&self, key: K) -> Option<&T> {
        let place = self.place(key).ok()?;
        self.0.get(place).map(|(_, value)| value)
    }

    /// The value of a key, to be changed.
    pub fn get_mut(&mut self, key: K) -> Option<&mut T> {
        let place = self.place(key).ok()?;
        self.0.get_mut(place).map(|(_, value)| value)
    }

    /// Sets the value of a key.
    pub fn insert(&mut self, key: K, value: T) {
        match self.place(key) {
            Ok(place) => {
                if let Some(row) = self.0.get_mut(place) {
                    row.1 = value;
                }
            }
            Err(place) => self.0.insert(place, (key, value)),
        }
    }

    /// Forgets a key.
    pub fn remove(&mut self, key: K) {
        if let Ok(place) = self.place(key) {
            self.0.remove(place);
        }
    }

    /// All rows in the order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = (K, &T)> {
        self.0.iter().map(|(key, value)| (*key, value))
    }

    /// All rows in the order of their keys, to be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (K, &mut T)> {
        self.0.iter_mut().map(|(key, value)| (*key, value))
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no row.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn place(&self, key: K) -> Result<usize, usize> {
        self.0.binary_search_by(|(other, _)| other.cmp(&key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_found_by_key_and_come_in_order() {
        let mut rows = Rows::default();
        assert!(rows.is_empty());
        for key in [5, 1, 9, 5] {
            rows.insert(key, key * 10);
        }
        rows.insert(1, 11);
        assert_eq!(rows.get(1), Some(&11));
        assert_eq!(rows.get(2), None);
        rows.remove(9);
        rows.remove(2);
        if let Some(value) = rows.get_mut(5) {
            *value += 1;
        }
        assert_eq!(rows.iter().collect::<Vec<_>>(), [(1, &11), (5, &51)]);
        assert_eq!(rows.len(), 2);
    }
}
