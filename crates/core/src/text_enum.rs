//! Enums whose values have fixed names.

/// Declares an enum without fields and the name of each value in SQL, JSON and CLI output: `ALL`, `as_str` and `parse`.
#[macro_export]
macro_rules! text_enum {
    ($(#[$meta:meta])* $vis:vis enum $name:ident { $($(#[$about:meta])* $value:ident = $text:literal,)+ }) => {
        $(#[$meta])*
        $vis enum $name {
            $($(#[$about])* $value,)+
        }

        impl $name {
            /// Every value, in the order of declaration.
            $vis const ALL: [Self; [$($text),+].len()] = [$(Self::$value),+];

            /// The name used in SQL, JSON and CLI output.
            $vis const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$value => $text,)+
                }
            }

            /// Parses a name.
            $vis fn parse(name: &str) -> Option<Self> {
                match name {
                    $($text => Some(Self::$value),)+
                    _ => None,
                }
            }
        }
    };
}

#[cfg(test)]
mod tests {
    text_enum! {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        enum Light {
            Red = "red",
            Green = "green",
        }
    }

    #[test]
    fn each_name_parses_to_its_value() {
        assert_eq!(Light::ALL.map(Light::as_str), ["red", "green"]);
        assert_eq!(Light::ALL.map(|light| Light::parse(light.as_str())), Light::ALL.map(Some));
        assert_eq!(Light::parse("Red"), None);
    }
}
